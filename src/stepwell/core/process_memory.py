"""Resident memory of processes, in MiB.

Resident memory is what counts. Address space says little: threads and allocators reserve far more than they
use. Where the system has no `/proc`, only this process's highest value is known; for others it is 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def read_resident_mb(pid: int | None = None) -> float:
    """Resident memory of one process (None: this one); 0 if it is gone."""
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0 if pid is not None else _read_peak_mb()


def measure_tree_memory_mb(pid: int) -> float:
    """Resident memory of a process and of everything it started."""
    return read_resident_mb(pid) + sum(measure_tree_memory_mb(child) for child in _list_children(pid))


def _read_peak_mb() -> float:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _list_children(pid: int) -> list[int]:
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # the process, or a thread of it, ended meanwhile
        return []
    return [int(child) for text in lists for child in text.split()]
