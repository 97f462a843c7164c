"""Bring a database to the current schema; the first process that opens it does so.

    no tables, SQLite      create_schema: the tables of `schema.py` and their revision
    anything else          upgrade: the missing revisions, one after the other

Both run in one transaction under a lock. A killed upgrade leaves the old schema, and two processes
that open a new pool at once create it once. For a pool that is up to date (the usual case) this costs
one SELECT. Alembic is loaded for an upgrade only. A test compares the two ways.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, text

from stepwell.core.errors import ConfigError
from stepwell.pool.schema import REVISION, metadata

FOLDER = Path(__file__).parent / "migrations"
# As Alembic makes it; apart from the tables of the pool, which are compared with the migrated ones
_VERSION = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))


def read_revision(connection: Connection) -> str | None:
    """The revision of the database; None if there is no pool yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def require_current(connection: Connection, path: Path | None) -> None:
    """Refuse a read-only pool that does not have the current schema."""
    found = read_revision(connection)
    if found is None:
        raise ConfigError(f"{path} is not a pool, and it is read-only")
    if found != REVISION:
        raise ConfigError(
            f"the pool {path} has schema {found}, this Stepwell reads {REVISION}, and it is read-only: "
            "copy it to a writable folder, or open it with the version that wrote it"
        )


def can_be_created(connection: Connection) -> bool:
    """Whether this is an SQLite database without any table; PostgreSQL has settings per column besides."""
    return connection.dialect.name == "sqlite" and not inspect(connection).get_table_names()


def create_schema(connection: Connection) -> None:
    """The tables of the current revision in an empty database."""
    metadata.create_all(connection, checkfirst=False)
    _VERSION.create(connection, checkfirst=False)
    connection.execute(insert(_VERSION).values(version_num=REVISION))


def upgrade(connection: Connection, target: str = REVISION) -> None:
    """Run the missing revisions up to `target`, in the transaction of `connection`."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    found = read_revision(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise ConfigError(
            f"the pool has schema {found}, this Stepwell knows up to {REVISION}: "
            "it was written by a newer version; install that one"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, target)
