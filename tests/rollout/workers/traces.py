"""What a worker may leave behind: processes, shared memory, descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def workers_of(parent: int) -> set[int]:
    """Processes, dead ones not collected yet among them, whose parent this is."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent:
                found.add(int(entry.name))
    return found


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
    return sorted(name.split(":")[0] if name[0] != "/" else name for name in found)


def shared_memory() -> list[str]:
    """Named shared memory of the machine, but for that of database servers of other tests."""
    return sorted(name for name in os.listdir("/dev/shm") if not name.startswith("PostgreSQL."))


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that the block leaves nothing that it did not find."""
    before = workers_of(os.getpid()), mapped(), descriptors(), shared_memory()
    yield
    assert (workers_of(os.getpid()), mapped(), descriptors(), shared_memory()) == before
