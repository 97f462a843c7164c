"""What is expensive to make and only read: made once for all processes of a test run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def make_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make(folder)` fills; a process that comes later waits and gets the same folder."""
    root = Path(os.environ["STEPWELL_TESTS_SHARED"])
    final, begun = root / name, root / f".{name}"
    with (root / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.exists():
            shutil.rmtree(begun, ignore_errors=True)  # of a process that failed at it
            begun.mkdir()
            make(begun)
            begun.rename(final)
    return final
