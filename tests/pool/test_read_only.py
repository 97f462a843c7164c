"""A pool that may not be written is read with every reading command, and refuses what would write."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import rich.console
import rich.progress  # now: another user may not be allowed to read this interpreter's packages
import rich.table  # noqa: F401
from sqlalchemy import create_engine, text
from tests.pool.made import step, trajectory

from stepwell.cli.main import main
from stepwell.core import ConfigError, ImageSpan, ImageStore, Status, Step
from stepwell.pool import Pool, open_pool

IMAGE = np.full((4, 4, 3), 9, np.uint8)
NOBODY = 65534


@contextmanager
def someone_else() -> Iterator[None]:
    """Act as a user to whom permissions apply: root may write everywhere."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="stepwell-read-only-"))
    path.chmod(0o755)
    yield path
    for each in [path, *path.rglob("*")]:
        each.chmod(0o755)
    shutil.rmtree(path)


@pytest.fixture
def out(folder: Path) -> Path:
    path = folder / "out"
    path.mkdir()
    path.chmod(0o777)
    return path


def fill(place: Path) -> Pool:
    """A pool with a trajectory and an image, still open."""
    pool = open_pool(place / "pool.db")
    seen = Step.from_tokens([5, 5, 6], [7], images=(ImageSpan(pool.blobs.put_image(IMAGE), 0, 2),))
    pool.add([trajectory("a", [step(0, reward=1.0), seen])], tags=["good"])
    return pool


def close_for_others(place: Path) -> None:
    for path in place.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    place.chmod(0o555)


@pytest.fixture(params=["closed", "open elsewhere", "killed", "killed, index lost", "file alone"])
def read_only(request: pytest.FixtureRequest, folder: Path) -> Iterator[Path]:
    """The folder of a read-only pool, in the states in which one is met."""
    place = folder / "pool"
    place.mkdir()
    pool = fill(place)
    if request.param.startswith("killed"):  # what a kill leaves: the newest commits are in the log alone
        left = folder / "left"
        shutil.copytree(place, left)
        if request.param.endswith("lost"):
            (left / "pool.db-shm").unlink()
        assert (left / "pool.db-wal").stat().st_size > 0
        pool.close()
        place = left
    elif request.param != "open elsewhere":
        pool.close()
    if request.param == "file alone":
        (place / "pool.db").chmod(0o444)
    else:
        close_for_others(place)
    yield place
    pool.close()


def test_a_read_only_pool_is_read_whole(read_only: Path, out: Path) -> None:
    before = sorted(path.name for path in read_only.rglob("*"))
    with someone_else(), open_pool(read_only) as pool:
        assert pool.is_read_only
        assert [entry.id for entry in pool.find()] == ["a"] and pool.count() == 1
        (found,) = pool.trajectories()
        assert found.steps[0] == step(0, reward=1.0)
        assert (pool.load_image(found.steps[1].state.images[0].image) == IMAGE).all()  # type: ignore[union-attr]
        assert pool.stats().num_blobs == 1
        assert pool.export(out / "x.jsonl") == 1
        assert pool.gc(max_age_s=0, dry_run=True).num_trajectories == 0
    assert sorted(path.name for path in read_only.rglob("*")) == before
    with open_pool(out / "copy.db") as copy:
        assert copy.import_(out / "x.jsonl") == 1


def test_every_reading_command_opens_a_read_only_pool(
    read_only: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(read_only)
    with someone_else():
        for command in (["ls", place], ["show", place, "a"], ["stats", place]):
            assert main(["pool", *command]) == 0
        assert main(["pool", "export", place, str(out / "x.jsonl")]) == 0
    shown = capsys.readouterr()
    assert "1 of 1 trajectories" in shown.out and "act 0" in shown.out and "1 images" in shown.out


@pytest.mark.parametrize("command", ["import", "tag", "gc"])
def test_commands_that_write_are_refused_in_one_line(
    folder: Path, out: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    place = folder / "pool"
    place.mkdir()
    with fill(place) as pool:
        pool.export(out / "x.jsonl")
    close_for_others(place)
    rest = {"import": [str(out / "x.jsonl")], "tag": ["good"], "gc": ["--max-age", "1d"]}[command]
    with someone_else():
        assert main(["pool", command, str(place), *rest]) != 0
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "is read-only" in said.err


def test_every_write_to_a_read_only_pool_is_refused(folder: Path) -> None:
    place = folder / "pool"
    place.mkdir()
    fill(place).close()
    close_for_others(place)
    task = trajectory("b").task
    store = ImageStore()
    other = Step.from_tokens([5, 5, 6], [7], images=(ImageSpan(store.add(IMAGE + 1), 0, 2),))
    with someone_else(), open_pool(place) as pool:
        assert not pool.is_quick()
        for write in (
            lambda: pool.begin(task),
            lambda: pool.append("a", 2, [step(2)]),
            lambda: pool.reward("a", 1.0),
            lambda: pool.finish("a", Status.FAILURE),
            lambda: pool.add([trajectory("b")]),
            lambda: pool.store_images([trajectory("c", [other])], store),
            lambda: pool.take("trainer", 1),
            lambda: pool.tag(["a"], "x"),
            lambda: pool.gc(max_bytes=0, unconsumed=True),
        ):
            with pytest.raises(ConfigError, match="read-only"):
                write()
        with pytest.raises(ConfigError, match="read-only"):
            open_pool(place, require_write=True)
    with open_pool(place) as pool:
        assert pool.count() == 1


def test_a_read_only_file_that_is_no_pool_of_this_version_is_refused(folder: Path) -> None:
    place = folder / "pool"
    place.mkdir()
    fill(place).close()
    engine = create_engine(f"sqlite:///{place / 'pool.db'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    engine.dispose()
    for each in place.glob("pool.db-*"):
        each.unlink()
    close_for_others(place)
    with someone_else(), pytest.raises(ConfigError, match=r"schema 0001.*read-only.*copy it"):
        open_pool(place)
    place.chmod(0o755)
    (place / "empty.db").touch(0o444)
    place.chmod(0o555)
    with someone_else(), pytest.raises(ConfigError, match="is not a pool"):
        open_pool(place / "empty.db")


def test_a_new_pool_where_nothing_may_be_written_is_refused_by_name(folder: Path) -> None:
    folder.chmod(0o555)
    with someone_else(), pytest.raises(ConfigError, match=r"cannot create a pool at .*new/pool\.db"):
        open_pool(folder / "new" / "pool.db")
