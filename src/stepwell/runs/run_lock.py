"""The lock of a run folder: one process trains in it at a time.

    runs/NAME/.lock     {"pid": 4711, "host": "node7", "since": "2026-01-31 12:00:00"}

The kernel holds the lock (`flock`) and releases it when the process ends, however it ends. Only the file is
left behind, never the lock; it is empty where the process could still empty it. Reading a run (`eval`,
`report`, `play`, `view`) needs no lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from stepwell.core.disk import make_write_error
from stepwell.core.errors import ConfigError

LOCK_FILE = ".lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


@contextmanager
def hold_run_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; refused with the holder's pid and host if another process has it."""
    file = _lock_folder(folder)
    try:
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        }
        file.seek(0)
        file.truncate()
        file.write(json.dumps(holder))
        file.flush()
        yield
    finally:
        with suppress(OSError):
            file.truncate(0)
        file.close()


def find_process(folder: Path, *, since: Path) -> int | None:
    """The process of this machine that trains in a folder; where the file `since` is newer, it has ended."""
    path = folder / LOCK_FILE
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        is_over = since.exists() and since.stat().st_mtime_ns > path.stat().st_mtime_ns
        if is_over or holder["host"] != socket.gethostname():
            return None
        with suppress(PermissionError):  # another user's process
            os.kill(holder["pid"], 0)
        return int(holder["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _lock_folder(folder: Path) -> IO[str]:
    path = folder / LOCK_FILE
    while True:
        try:
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise make_write_error(path, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(file)
            file.close()
            raise _explain_failure(folder, error, holder) from None
        if _is_same_file(file, path):
            return file
        file.close()  # its holder has deleted the folder meanwhile


def _explain_failure(folder: Path, error: OSError, holder: str) -> ConfigError:
    if error.errno in _NO_LOCKS:
        return ConfigError(
            f"folder: the filesystem of {folder} has no file locks ({error.strerror}), which a run needs so "
            "that no second process trains in it; choose a `folder` on another disk"
        )
    return ConfigError(
        f"{folder} is in use by {holder}; wait until it ends, or stop it. It saves and stops after Ctrl-C or "
        "SIGTERM"
    )


def _read_holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        holder = json.loads(file.read())
        return f"process {holder['pid']} on host {holder['host']} since {holder['since']}"
    except (ValueError, KeyError, TypeError):  # it has not written its name yet
        return "another process"


def _is_same_file(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
