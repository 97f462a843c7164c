"""Every test that takes `place` or `pool` runs against SQLite and against a real PostgreSQL."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.pool.postgres import MISSING, binaries, database, server

from stepwell.pool import Pool, open_pool
from stepwell.pool.schema import metadata


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A private server for the session. A test's data need not outlive the machine: no fsync.

    Without autovacuum: when it comes depends on the time that tests take, and plans change with it.
    """
    if binaries() is None:
        pytest.skip(MISSING)
    with server(fsync="off", full_page_writes="off", autovacuum="off") as url:
        yield url


@pytest.fixture(scope="session")
def postgres_database(postgres_server: str) -> Iterator[str]:
    """One database with the schema in it; to empty it is quicker than to make another."""
    with database(postgres_server) as url:
        open_pool(url).close()
        yield url


@pytest.fixture(scope="session")
def empty_database(postgres_database: str) -> Iterator[Callable[[], str]]:
    """Removes every row, in one request over one connection, and gives the URL."""
    names = [table.name for table in reversed(metadata.sorted_tables)]
    commands = "; ".join(f"DELETE FROM {name}" for name in names)
    with psycopg.connect(postgres_database, autocommit=True) as connection:

        def empty() -> str:
            connection.execute(commands)  # type: ignore[call-overload]
            return postgres_database

        yield empty


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the schema in it, to be copied."""
    path = tmp_path_factory.mktemp("pools") / "pool.db"
    open_pool(path).close()
    return path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a pool of this test's own lives: a file, or the URL of a database."""
    if request.param == "sqlite":
        yield shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "pool.db").__fspath__()
        return
    yield request.getfixturevalue("empty_database")()


@pytest.fixture
def pool(place: str, tmp_path: Path) -> Iterator[Pool]:
    with open_pool(place, blobs=tmp_path / "blobs") as opened:
        yield opened
