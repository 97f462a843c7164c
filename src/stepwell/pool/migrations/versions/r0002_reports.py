"""Reports attached to trajectories, and the policy versions that were published."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "reports",
        sa.Column("seq", _SEQ, primary_key=True, autoincrement=True),
        sa.Column(
            "trajectory", sa.BigInteger, sa.ForeignKey("trajectories.seq", ondelete="CASCADE"), nullable=False
        ),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("reports_by_trajectory", "reports", ["trajectory", "seq"])
    op.create_table(
        "versions",
        sa.Column("seq", _SEQ, primary_key=True, autoincrement=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("versions_once", "versions", ["version", "fingerprint"], unique=True)
