"""Atomic writes of files in a run folder, with errors that say what to do.

A run folder is read while it is written (reports, dashboards, a second terminal), and a run may be
killed or lose power at any moment. So a file is written under a temporary name, flushed and renamed,
and its folder is flushed. The error about a failed disk names the file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from stepwell.core.disk import rename_durably
from stepwell.core.errors import InfraError


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
