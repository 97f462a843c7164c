"""Groups, trajectories, steps, rewards, tags and images."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SEQ = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _seq() -> sa.Column[int]:
    return sa.Column("seq", _SEQ, primary_key=True, autoincrement=True)


def _of_trajectory(*, primary_key: bool = False) -> sa.Column[int]:
    parent = sa.ForeignKey("trajectories.seq", ondelete="CASCADE")
    return sa.Column("trajectory", sa.BigInteger, parent, nullable=False, primary_key=primary_key)


def upgrade() -> None:
    _groups()
    _trajectories()
    _steps()
    _of_one_trajectory()


def _groups() -> None:
    op.create_table(
        "groups",
        _seq(),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("size", sa.Integer, nullable=False),
        sa.Column("num_finished", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("consumer", sa.Text),
        sa.Column("holder", sa.Text),
        sa.Column("lease_s", sa.Double),
        sa.Column("lease_until_s", sa.Double),
        sa.Column("checkpoint", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("groups_by_state", "groups", ["channel", "state", "seq"])
    op.create_index("groups_by_lease", "groups", ["channel", "state", "lease_until_s"])
    op.create_index("groups_by_consumer", "groups", ["consumer", "state", "checkpoint"])


def _trajectories() -> None:
    op.create_table(
        "trajectories",
        _seq(),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("group", sa.BigInteger, sa.ForeignKey("groups.seq"), nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("env", sa.Text, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sa.Column("finished_s", sa.Double),
        sa.Column("status", sa.Text),
        sa.Column("place", sa.Integer),
        sa.Column("path", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("final_state", sa.LargeBinary),
        sa.Column("num_steps", sa.Integer),
        sa.Column("num_bytes", sa.BigInteger),
        sa.Column("reward", sa.Double),
        sa.Column("first_version", sa.BigInteger),
        sa.Column("last_version", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("trajectories_by_group", "trajectories", ["group"])
    op.create_index("trajectories_by_task", "trajectories", ["task_id"])
    op.create_index("trajectories_by_channel", "trajectories", ["channel", "seq"])
    op.create_index("trajectories_by_status", "trajectories", ["status", "seq"])


def _steps() -> None:
    op.create_table(
        "steps",
        _of_trajectory(primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("base", sa.Integer),
        sa.Column("shared", sa.Integer, nullable=False),
        sa.Column("first_version", sa.BigInteger, nullable=False),
        sa.Column("last_version", sa.BigInteger, nullable=False),
        sa.Column("reward", sa.Double),
        sa.Column("reward_parts", sa.Text),
        sa.Column("record", sa.LargeBinary, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":  # records are compressed already
        op.execute("ALTER TABLE steps ALTER COLUMN record SET STORAGE EXTERNAL")


def _of_one_trajectory() -> None:
    op.create_table(
        "rewards",
        _seq(),
        _of_trajectory(),
        sa.Column("number", sa.Integer),
        sa.Column("part", sa.Text, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("created_s", sa.Double, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("rewards_by_trajectory", "rewards", ["trajectory", "seq"])
    op.create_table("tags", _of_trajectory(primary_key=True), sa.Column("tag", sa.Text, primary_key=True))
    op.create_index("tags_by_tag", "tags", ["tag", "trajectory"])
    op.create_table("images", _of_trajectory(primary_key=True), sa.Column("image", sa.Text, primary_key=True))
    op.create_index("images_by_image", "images", ["image"])
