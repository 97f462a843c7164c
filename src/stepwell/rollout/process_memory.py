"""How much memory a process and what it started occupy, where the system says (`/proc`).

Resident memory is what counts: address space says little, as threads and allocators reserve far more
than they use.
"""

from __future__ import annotations

import os
from pathlib import Path


def memory_mb(pid: int) -> float:
    """Resident memory of one process in MiB; 0 where it is gone or the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def tree_memory_mb(pid: int) -> float:
    """Resident memory of a process and of all that it started, in MiB."""
    return memory_mb(pid) + sum(tree_memory_mb(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    """The processes that a process started; none where the system does not say."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it, or a thread of it, ended meanwhile
        return []
    return [int(child) for text in lists for child in text.split()]
