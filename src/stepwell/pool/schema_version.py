"""Brings a database to the schema of this version, once, whoever opens it first.

All revisions of one upgrade run in one transaction under a lock, so that a killed upgrade leaves
the old schema and two processes that open a new pool at once make it once. A pool that is up to
date (the usual case) costs one SELECT, and Alembic is not even loaded.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from stepwell.core.errors import ConfigError
from stepwell.pool.schema import REVISION

FOLDER = Path(__file__).parent / "migrations"


def current_revision(connection: Connection) -> str | None:
    """The revision of the database; None where there is no pool yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def require_current(connection: Connection, path: Path | None) -> None:
    """Refuse a pool that is not of this version's schema, where it cannot be brought up to date."""
    found = current_revision(connection)
    if found is None:
        raise ConfigError(f"{path} is not a pool, and nothing can be written to it")
    if found != REVISION:
        raise ConfigError(
            f"the pool {path} has schema {found}, this Stepwell reads {REVISION}, and it is read-only: "
            "copy it to where it can be written, or open it with the version that wrote it"
        )


def upgrade(connection: Connection, target: str = REVISION) -> None:
    """Run what is missing up to `target`, in the transaction `connection` is in."""
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    found = current_revision(connection)
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise ConfigError(
            f"the pool has schema {found}, this Stepwell knows up to {REVISION}: "
            "it was written by a newer one; install that"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, target)
