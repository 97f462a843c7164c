"""What a worker may leave behind: processes, shared memory, descriptors."""

from __future__ import annotations

import gc
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.core.fork_server import list_servers


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers_of(parent: int) -> set[int]:
    """Processes, dead ones not collected yet among them, whose parent this is. Its fork servers stay."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent:
                found.add(int(entry.name))
    return found - set(list_servers())


def mapped() -> list[str]:
    """Shared memory that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(line for line in lines if "memfd:stepwell" in line)


def descriptors() -> list[str]:
    """What this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own
            continue
    names = sorted(name.split(":")[0] if name[0] != "/" else name for name in found)
    for _ in list_servers():  # one socket each
        names.remove("socket")
    return names


def shared_memory() -> list[str]:
    """Named shared memory that no process uses any more: processes of other tests have theirs mapped.

    Only by names that torch, Python or this package give: other programs of the machine make files there too.
    """
    ours = ("torch_", "psm_", "stepwell")
    names = {each.name for each in os.scandir("/dev/shm") if each.is_file() and each.name.startswith(ours)}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and names:
            try:
                names -= set(re.findall("/dev/shm/([^\\s]+)", (entry / "maps").read_text()))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return sorted(names)


def traces() -> dict[str, Counter[object]]:
    """All that there is now."""
    return {
        "processes": Counter(workers_of(os.getpid())),
        "mappings": Counter(mapped()),
        "descriptors": Counter(descriptors()),
        "shared memory": Counter(shared_memory()),
    }


@contextmanager
def nothing_left(within_s: float = 10.0) -> Iterator[None]:
    """Check that the block leaves nothing that it did not find.

    What goes away by itself is waited for: the system takes its time to
    close what a killed process had, and the other tests of this machine
    make shared memory before they map it.
    """
    gc.collect()  # what earlier tests left must not go away in between
    before = traces()
    yield
    until = time.monotonic() + within_s
    while True:
        left = {kind: found - before[kind] for kind, found in traces().items()}
        if not any(left.values()):
            return
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.05)
