"""A new SQLite pool is made at once, not by its migrations: the same tables, and Alembic is not loaded."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine, text

from stepwell.pool import open_pool
from stepwell.pool.database import parse_database_url
from stepwell.pool.schema import REVISION
from stepwell.pool.schema_version import upgrade


def migrate(file: Path) -> None:
    engine = create_engine(parse_database_url(file))
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()


def read_tables(file: Path) -> dict[str, object]:
    """Columns, keys and indexes of every table; the texts of the indexes too, for their conditions."""
    with closing(sqlite3.connect(file)) as raw:
        tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found: dict[str, object] = {}
        for table in tables:
            for pragma in ("table_info", "foreign_key_list", "index_list"):
                rows = raw.execute(f'PRAGMA {pragma}("{table}")').fetchall()
                found[f"{pragma} {table}"] = sorted(row[pragma == "index_list" :] for row in rows)
        made = raw.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        found["autoincrement"] = {name for name, sql in made if "AUTOINCREMENT" in sql}
        found["indexes"] = {name: re.sub(r"\s+", " ", sql) for name, sql in made if " INDEX " in sql}
        found["revision"] = raw.execute("SELECT version_num FROM alembic_version").fetchall()
    return found


def test_a_new_pool_has_the_tables_that_migrations_make(tmp_path: Path) -> None:
    open_pool(tmp_path / "new.db").close()
    migrate(tmp_path / "migrated.db")
    new = read_tables(tmp_path / "new.db")
    assert new["revision"] == [(REVISION,)] and len(new["indexes"]) > 10  # type: ignore[arg-type]
    assert new == read_tables(tmp_path / "migrated.db")


def test_an_empty_file_becomes_a_pool_and_a_file_with_other_tables_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with closing(sqlite3.connect(tmp_path / "other.db")) as raw:
        raw.execute("CREATE TABLE mine (a INTEGER)")
    for name in ("empty.db", "other.db"):
        open_pool(tmp_path / name).close()
    engine = create_engine(parse_database_url(tmp_path / "other.db"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM mine")).scalar() == 0
    engine.dispose()
    other = read_tables(tmp_path / "other.db")
    del other["table_info mine"], other["foreign_key_list mine"], other["index_list mine"]
    assert other == read_tables(tmp_path / "empty.db")


def test_making_a_new_pool_does_not_load_alembic(tmp_path: Path) -> None:
    code = "import sys; from stepwell.pool import open_pool; open_pool(sys.argv[1]).close(); "
    code += "print('alembic' in sys.modules)"
    file = str(tmp_path / "new.db")
    said = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
