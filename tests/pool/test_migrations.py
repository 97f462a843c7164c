"""One schema, however a pool came to it: made new, brought up from an old file, opened by many."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine
from tests.pool.made import dialogue, step
from tests.pool.postgres import database

from stepwell.core import ConfigError, Status
from stepwell.pool import Channel, open_pool
from stepwell.pool.database import Database, parse_database_url
from stepwell.pool.schema import REVISION, metadata
from stepwell.pool.schema_version import read_revision, upgrade

OLD = Path(__file__).parent / "data" / "pool_0001.db"  # made by make_old_pool.py beside it


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    """A place without a schema."""
    if request.param == "sqlite":
        yield str(tmp_path / "new.db")
        return
    with database(request.getfixturevalue("postgres_server")) as url:
        yield url


def at_revision(place: str, revision: str) -> None:
    engine = create_engine(parse_database_url(place))
    with engine.begin() as connection:
        upgrade(connection, revision)
    engine.dispose()


def differences(place: str) -> list[object]:
    engine = create_engine(parse_database_url(place))
    try:
        with engine.connect() as connection:
            return list(compare_metadata(MigrationContext.configure(connection), metadata))
    finally:
        engine.dispose()


def test_migrations_lead_to_the_tables_the_code_uses(empty: str) -> None:
    open_pool(empty).close()
    assert differences(empty) == []


def test_a_pool_of_the_first_revision_is_brought_up_with_all_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "pool.db"
    shutil.copy(OLD, file)
    with open_pool(file) as pool:
        assert [entry.id for entry in pool.find()] == ["g/0", "g/1", "talk"]
        assert pool.get("talk").trajectory.steps == dialogue(3)
        assert pool.get("talk").is_open and pool.get("talk").channel is Channel.USER
        assert [t.steps for t in pool.take("me", 1)[0].trajectories] == [
            [step(0, reward=1.0)],
            [step(1, reward=0.5)],
        ]
        assert pool.get("g/1").tags == ("old",) and pool.get("g/1").reward_history[0].source == "judge"
        pool.report("g/0", "what the first revision had no table for")
        pool.publish_version(1, "f")
        pool.append("talk", 3, dialogue(4)[3:])
        pool.finish("talk", Status.SUCCESS)
        assert pool.get("talk").trajectory.steps == dialogue(4)
    assert differences(str(file)) == []


@pytest.mark.slow
def test_an_old_postgres_pool_is_brought_up_too(postgres_server: str) -> None:
    with database(postgres_server) as url:
        at_revision(url, "0001")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO groups (name, channel, size, num_finished, state) "
                "VALUES ('g', 'train', 2, 0, 'filling')"
            )
        with open_pool(url) as pool:
            pool.publish_version(1, "f")
            assert pool.stats().channels[Channel.TRAIN].groups == {"filling": 1}
        assert differences(url) == []


def test_an_upgrade_that_fails_leaves_the_old_schema(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_revision(empty, "0001")

    def failing(connection: Connection) -> None:
        upgrade(connection)
        raise ConfigError("killed just before the commit")

    monkeypatch.setattr("stepwell.pool.database.upgrade", failing)
    with pytest.raises(ConfigError, match="killed"):
        open_pool(empty)
    engine = create_engine(parse_database_url(empty))
    with engine.connect() as connection:
        assert read_revision(connection) == "0001"
    engine.dispose()
    monkeypatch.undo()
    open_pool(empty).close()
    assert differences(empty) == []


def test_a_pool_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "pool.db"
    open_pool(file).close()
    with closing(sqlite3.connect(file)) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
        raw.commit()
    with pytest.raises(ConfigError, match=r"schema 9999.*written by a newer version"):
        open_pool(file)


def test_the_code_knows_the_newest_revision() -> None:
    from alembic.script import ScriptDirectory

    from stepwell.pool.schema_version import FOLDER

    assert ScriptDirectory(str(FOLDER)).get_current_head() == REVISION


@pytest.mark.slow
def test_many_processes_that_open_a_new_pool_at_once_make_it_once(empty: str) -> None:
    code = "import sys; from stepwell.pool import open_pool; print(open_pool(sys.argv[1]).count())"
    command = [sys.executable, "-c", code, empty]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0].strip() for process in started] == ["0"] * 3


def test_opening_an_up_to_date_pool_does_not_load_alembic(tmp_path: Path) -> None:
    open_pool(tmp_path / "pool.db").close()
    code = "import sys; from stepwell.pool import open_pool; open_pool(sys.argv[1]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert "sqlalchemy" in loaded and "alembic" not in loaded


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("", "location of the pool is empty"),
        ("mysql://host/x", "'mysql' is not supported"),
        ("sqlite://", "would be lost"),
        ("sqlite:///:memory:", "would be lost"),
        ("://", "not a database URL"),
    ],
)
def test_a_place_that_is_none_is_refused(place: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_pool(place)


def test_a_file_a_folder_and_a_url_may_mean_the_same_pool(tmp_path: Path) -> None:
    file = tmp_path / "pool.db"
    urls = {str(parse_database_url(place)) for place in (file, str(file), tmp_path, f"sqlite:///{file}")}
    assert len(urls) == 1
    with pytest.raises(ConfigError, match="durable is 'never'"):
        Database(file, "never")  # type: ignore[arg-type]


def test_the_durable_setting_reaches_the_database(tmp_path: Path) -> None:
    for durable, level in (("process", 1), ("power", 2)):
        db = Database(tmp_path / "pool.db", durable)  # type: ignore[arg-type]
        assert db.write(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar()) == level
        assert (
            db.write(lambda connection: connection.exec_driver_sql("PRAGMA journal_mode").scalar()) == "wal"
        )
        db.close()
