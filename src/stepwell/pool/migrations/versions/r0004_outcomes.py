"""Judged outcomes of trajectories. Trajectories stored before have none: their status decides."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "outcomes",
        sa.Column("seq", _SEQ, primary_key=True, autoincrement=True),
        sa.Column(
            "trajectory", sa.BigInteger, sa.ForeignKey("trajectories.seq", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("success_probability", sa.Double, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("judge", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("outcomes_by_trajectory", "outcomes", ["trajectory", "seq"])
    op.add_column("trajectories", sa.Column("success_probability", sa.Double))
