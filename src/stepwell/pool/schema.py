"""The tables of the pool, one schema for SQLite and PostgreSQL.

    groups 1 ── n trajectories 1 ── n steps
                     ├── n rewards   (every value ever given; the newest of a part counts)
                     ├── n outcomes  (every judgement ever given; the newest counts)
                     ├── n reports
                     ├── n tags
                     └── n images    (the blobs of a trajectory's images)
    versions                         (published policy versions)

Invariants
* `seq` numbers increase and are never reused; order by `seq` is order of creation.
* A step's row never changes after its commit. Later rewards are separate rows, so that no
  correction can damage a record.
* `groups.state` alone decides what is served: filling → ready → leased → consumed, and back to
  ready when a lease is given back or expires, or when its checkpoint is gone.
* Free text from people or programs (errors, info, sources) is JSON in ASCII, because PostgreSQL
  stores no zero bytes. Plain text columns hold checked names.
* `REVISION` is the newest migration. A test compares these tables with the migrated ones.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)

REVISION = "0004"
FILLING, READY, LEASED, CONSUMED = "filling", "ready", "leased", "consumed"

metadata = MetaData()
# Literal text: with a parameter, a planner would not recognise the partial index
IS_READY, IS_LEASED = text(f"state = '{READY}'"), text(f"state = '{LEASED}'")
_Seq = BigInteger().with_variant(Integer, "sqlite")  # in SQLite only INTEGER increments itself


def _make_seq_column() -> Column[int]:
    return Column("seq", _Seq, primary_key=True, autoincrement=True)


def _make_trajectory_column(*, primary_key: bool = False) -> Column[int]:
    parent = ForeignKey("trajectories.seq", ondelete="CASCADE")
    return Column("trajectory", BigInteger, parent, nullable=False, primary_key=primary_key)


groups = Table(
    "groups",
    metadata,
    _make_seq_column(),
    Column("name", Text, nullable=False, unique=True),
    Column("channel", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("num_finished", Integer, nullable=False),  # infrastructure failures not counted
    Column("state", Text, nullable=False),
    Column("consumer", Text),
    Column("holder", Text),  # the open pool object that took it
    Column("lease_s", Double),
    Column("lease_until_s", Double),
    Column("checkpoint", BigInteger),
    Index("groups_ready", "channel", "seq", postgresql_where=IS_READY, sqlite_where=IS_READY),
    Index("groups_leased", "channel", "lease_until_s", postgresql_where=IS_LEASED, sqlite_where=IS_LEASED),
    Index("groups_by_consumer", "consumer", "state", "checkpoint"),
    sqlite_autoincrement=True,
)

trajectories = Table(
    "trajectories",
    metadata,
    _make_seq_column(),
    Column("id", Text, nullable=False, unique=True),
    Column("group", BigInteger, ForeignKey("groups.seq"), nullable=False),
    Column("channel", Text, nullable=False),
    Column("env", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("finished_s", Double),
    Column("status", Text),  # none while open
    Column("place", Integer),  # 1..size: served with its group; none: stored only
    Column("path", Text),
    Column("outcome", Text),  # error, timings, info
    Column("final_state", LargeBinary),
    Column("num_steps", Integer),
    Column("num_bytes", BigInteger),
    Column("reward", Double),
    Column("first_version", BigInteger),
    Column("last_version", BigInteger),
    Column("success_probability", Double),  # of the newest outcome; none: not judged
    Index("trajectories_by_group", "group"),
    Index("trajectories_by_task", "task_id"),
    Index("trajectories_by_channel", "channel", "seq"),
    Index("trajectories_by_status", "status", "seq"),
    sqlite_autoincrement=True,
)

steps = Table(
    "steps",
    metadata,
    _make_trajectory_column(primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("base", Integer),  # the step whose prompt and action this prompt continues
    Column("shared", Integer, nullable=False),  # how many ids it shares with the base
    Column("first_version", BigInteger, nullable=False),
    Column("last_version", BigInteger, nullable=False),
    Column("reward", Double),
    Column("reward_parts", Text),
    Column("record", LargeBinary, nullable=False),
)

rewards = Table(
    "rewards",
    metadata,
    _make_seq_column(),
    _make_trajectory_column(),
    Column("number", Integer),  # none: the last step of the path
    Column("part", Text, nullable=False),
    Column("value", Double, nullable=False),
    Column("source", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Index("rewards_by_trajectory", "trajectory", "seq"),
    sqlite_autoincrement=True,
)

outcomes = Table(
    "outcomes",
    metadata,
    _make_seq_column(),
    _make_trajectory_column(),
    Column("success_probability", Double, nullable=False),
    Column("source", Text, nullable=False),
    Column("judge", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Index("outcomes_by_trajectory", "trajectory", "seq"),
    sqlite_autoincrement=True,
)

tags = Table(
    "tags",
    metadata,
    _make_trajectory_column(primary_key=True),
    Column("tag", Text, primary_key=True),
    Index("tags_by_tag", "tag", "trajectory"),
)

images = Table(
    "images",
    metadata,
    _make_trajectory_column(primary_key=True),
    Column("image", Text, primary_key=True),
    Index("images_by_image", "image"),
)

reports = Table(
    "reports",
    metadata,
    _make_seq_column(),
    _make_trajectory_column(),
    Column("body", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Index("reports_by_trajectory", "trajectory", "seq"),
    sqlite_autoincrement=True,
)

versions = Table(
    "versions",
    metadata,
    _make_seq_column(),
    Column("version", BigInteger, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Index("versions_once", "version", "fingerprint", unique=True),
    sqlite_autoincrement=True,
)
