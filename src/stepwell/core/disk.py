"""Files and folders that survive a power loss: whatever is renamed or created is flushed with its folder.

Flushing a file saves its bytes. Its name is an entry of the parent folder, which must be flushed as
well, or a power loss can remove the whole file. Code that promises durability renames files and
creates folders with these functions.

A run folder is read while it is written (reports, dashboards, a second terminal), and a run may be killed at
any moment: `atomic_write` gives a file its name when it is complete. Its error names the file and the fix.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.core.errors import InfraError


def flush_file(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_tree(folder: Path) -> None:
    """Wait until a folder and everything in it are on disk."""
    for path in folder.rglob("*"):
        flush_file(path)
    flush_file(folder)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one folder, replacing `target`; the new name is on disk when this returns."""
    source.replace(target)
    flush_file(target.parent)


def make_folder_durably(path: Path) -> None:
    """Create a folder with its missing parents; their names are on disk when this returns."""
    if path.is_dir():
        return
    make_folder_durably(path.parent)
    path.mkdir(exist_ok=True)
    flush_file(path.parent)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock file `path`, and hold it."""
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def atomic_write(path: Path, data: bytes | str) -> None:
    """Replace `path` with `data` in one step: a reader sees the old file or the new one."""
    data = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        rename_durably(temporary, path)
    except OSError as error:
        raise make_write_error(path, error) from error
    finally:
        if temporary.exists():
            temporary.unlink()


def make_write_error(path: Path, error: OSError) -> InfraError:
    """The error for a `path` that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "the disk is full: free some space (old runs, or lower checkpoint.keep)"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        fix = "the folder cannot be written: give it write permission or choose another `folder`"
    else:
        fix = "check the disk"
    return InfraError(
        f"cannot write {path} ({error.strerror or error}); {fix}, then continue with --resume. "
        "What was written before is intact."
    )
