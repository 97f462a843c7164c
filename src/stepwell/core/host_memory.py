"""How much memory this machine, or the container this process runs in, can still give.

Memory that holds cached files counts as free: the system gives it away when a process asks for it.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def read_available_bytes() -> float:
    """Bytes that can be allocated without swapping, within the limit of the container.

    Half of all memory where the system does not say (not Linux).
    """
    return min(_read_machine(), _read_container())


def _read_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2)
    values = {name: text for name, _, text in (line.partition(":") for line in lines)}
    return 1024.0 * int(values["MemAvailable"].split()[0])


def _read_container() -> float:
    """What the control group (version 2) still allows; infinite without a limit."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if limit == "max":
            return float("inf")
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return float("inf")
    return float(int(limit) - used + int(stat.get("inactive_file", 0)))
