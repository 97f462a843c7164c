"""What is renamed or made durably is flushed: the file, and the folder that holds its name."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.core.disk import atomic_write, make_folder_durably
from stepwell.policies.atomic_directory import write_directory_atomically
from stepwell.pool import BlobStore, open_pool


class Disk:
    """What was flushed, as (inode, what the folder held then): the system's own calls, watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.flushed: list[tuple[int, frozenset[str]]] = []
        fsync = os.fsync

        def watched(handle: int) -> None:
            fsync(handle)
            found = Path(f"/proc/self/fd/{handle}").resolve()
            names = frozenset(os.listdir(found)) if found.is_dir() else frozenset()
            self.flushed.append((os.fstat(handle).st_ino, names))

        monkeypatch.setattr(os, "fsync", watched)

    def has(self, path: Path) -> bool:
        """Whether the bytes of a file, and its name in the folder above, were flushed."""
        is_file_flushed = any(inode == path.stat().st_ino for inode, _ in self.flushed)
        above = path.parent.stat().st_ino
        return is_file_flushed and any(inode == above and path.name in names for inode, names in self.flushed)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_file_written_whole_is_flushed_with_its_name(disk: Disk, tmp_path: Path) -> None:
    atomic_write(tmp_path / "summary.json", "{}")
    assert disk.has(tmp_path / "summary.json")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_directory_written_whole_is_flushed_with_all_names(
    disk: Disk, tmp_path: Path, is_there: bool
) -> None:
    target = tmp_path / "checkpoints" / "best"
    if is_there:
        target.mkdir(parents=True)
    with write_directory_atomically(target) as fresh:
        (fresh / "deep").mkdir()
        (fresh / "deep" / "model").write_text("weights")
    for path in (target / "deep" / "model", target / "deep", target):
        assert disk.has(path)
    assert is_there or disk.has(tmp_path / "checkpoints")


def test_folders_above_are_flushed_when_they_are_made(disk: Disk, tmp_path: Path) -> None:
    make_folder_durably(tmp_path / "a" / "b")
    above = {names for inode, names in disk.flushed if inode == (tmp_path / "a").stat().st_ino}
    assert above == {frozenset({"b"})}
    assert any(inode == tmp_path.stat().st_ino and "a" in names for inode, names in disk.flushed)


def test_an_image_that_is_stored_for_a_power_cut_is_flushed_with_its_folders(
    disk: Disk, tmp_path: Path
) -> None:
    store = BlobStore(tmp_path / "images")
    path = store.get_path(store.put(b"pixels"))
    assert disk.has(path)
    assert any(
        inode == store.root.stat().st_ino and path.parent.name in names for inode, names in disk.flushed
    )


def test_an_image_that_another_writer_did_not_flush_is_flushed_by_the_next_put(
    disk: Disk, tmp_path: Path
) -> None:
    quick = BlobStore(tmp_path, flush=False)
    path = quick.get_path(quick.put(b"pixels"))
    assert not disk.flushed
    BlobStore(tmp_path).put(b"pixels")
    assert disk.has(path)


def test_the_folder_of_a_pool_for_power_cuts_is_flushed(disk: Disk, tmp_path: Path) -> None:
    with open_pool(tmp_path / "new" / "pool.db", durable="power"):
        assert any(inode == tmp_path.stat().st_ino and "new" in names for inode, names in disk.flushed)


@pytest.mark.parametrize("durable", ["process", "power"])
def test_the_gateway_opens_its_pool_as_durable_as_asked(disk: Disk, tmp_path: Path, durable: str) -> None:
    options = ["--pool", str(tmp_path / "new" / "pool.db"), "--durable", durable]
    with socket.create_server(("127.0.0.1", 0)) as taken:  # the gateway opens its pool, and then gives up
        port = ["--port", str(taken.getsockname()[1])]
        assert main(["serve", "gateway", "--upstream", "http://127.0.0.1:9/v1", *port, *options]) != 0
    assert (tmp_path / "new" / "pool.db").is_file()
    is_flushed = any(inode == tmp_path.stat().st_ino and "new" in names for inode, names in disk.flushed)
    assert is_flushed == (durable == "power")
