"""Every test that takes `place` or `pool` runs against SQLite and against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.pool.postgres import MISSING, binaries, database, server

from stepwell.pool import Pool, open_pool


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A private server for the session. A test's data need not outlive the machine: no fsync."""
    if binaries() is None:
        pytest.skip(MISSING)
    with server(fsync="off", full_page_writes="off") as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """A database with the schema in it, which is quicker to copy than to make."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE pool_template")
    open_pool(postgres_server.rsplit("/", 1)[0] + "/pool_template").close()
    return "pool_template"


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a pool of this test's own lives: a file, or the URL of a database."""
    if request.param == "sqlite":
        yield str(tmp_path / "pool.db")
        return
    url = request.getfixturevalue("postgres_server")
    with database(url, request.getfixturevalue("postgres_template")) as new:
        yield new


@pytest.fixture
def pool(place: str, tmp_path: Path) -> Iterator[Pool]:
    with open_pool(place, blobs=tmp_path / "blobs") as opened:
        yield opened
