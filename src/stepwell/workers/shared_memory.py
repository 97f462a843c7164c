"""Memory without a name that two processes share. Nothing is left behind, however they end.

    Outbox   of the sender: puts frames into arenas, and makes a larger arena if a frame does not fit
    Inbox    of the receiver: maps the arenas, copies frames out, and frees their regions

An arena is an anonymous file (memfd; elsewhere a temporary file without a name), handed over as a descriptor.
The kernel frees it with the last process that has mapped it, so a killed parent or worker leaves nothing in
/dev/shm. A region begins with one byte: 1 while its frame is unread, 0 once the receiver has copied it. The
sender reads that byte when it needs room. So arenas are reused, and messages need no allocation.

Invariants
* Only the sender writes to a region, except for that byte.
* The memory of an arena is reserved at once: too little memory is a `WorkerError`, not a bus error in the
  middle of a copy.
* An arena that became too small is dropped on both sides once every frame in it was read.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepwell.core import EncodingError, WorkerError
from stepwell.core.frames import ALIGNMENT, Buffer

FIRST_BYTES = 1 << 18
MAX_DOUBLED_BYTES = 1 << 26
LARGE_BYTES = 1 << 20  # copied without blocking other threads


def create_shared_file(size: int) -> int:
    """A descriptor of `size` bytes of zeros without a name."""
    try:
        if hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("stepwell", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
    except OSError as error:
        raise _explain_no_memory(size, error) from error
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.truncate(descriptor, size)
    except OSError as error:
        os.close(descriptor)
        raise _explain_no_memory(size, error) from error
    return descriptor


def _explain_no_memory(size: int, error: OSError) -> WorkerError:
    return WorkerError(
        f"{size / 2**20:.3g} MiB of shared memory are not available ({error.strerror}); "
        "free some memory or descriptors, or use fewer workers or smaller batches"
    )


class _Arena:
    """One shared file on the side of its sender."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.descriptor: int | None = create_shared_file(size)  # until it is handed over
        try:
            self.memory = mmap.mmap(self.descriptor, size)
        except OSError as error:
            os.close(self.descriptor)
            raise _explain_no_memory(size, error) from error
        self._regions: list[tuple[int, int]] = []

    def take_region(self, size: int) -> int | None:
        """Take a region of `size` bytes: where it begins; None if there is no room."""
        regions = [region for region in self._regions if self.memory[region[0]]]
        start, place = 0, 0
        for place, (begin, end) in enumerate([*regions, (self.size, self.size)]):  # noqa: B007
            if begin - start >= size:
                break
            start = end
        else:
            self._regions = regions
            return None
        regions.insert(place, (start, start + size))
        self._regions = regions
        self.memory[start] = 1
        return start

    @property
    def is_free(self) -> bool:
        """Whether every frame in it was read."""
        return not any(self.memory[start] for start, _ in self._regions)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
        _close_mapping(self.memory)


class Outbox:
    """Frames for the other side. Several threads may use it."""

    def __init__(self, first_bytes: int = FIRST_BYTES) -> None:
        self._arenas: list[_Arena] = []
        self._first_bytes = first_bytes
        self._num_made = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def put_frame(self, parts: Sequence[Buffer], size: int) -> tuple[int, int]:
        """Copy a frame in; the number of its arena and where it begins there."""
        arena, start = self._take_region(-(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT)
        offset = start + ALIGNMENT
        for part in parts:
            offset = _copy_in(arena.memory, offset, part)
        return arena.number, start

    def prepare_handover(self, number: int) -> tuple[int, list[int]]:
        """The oldest arena in use, and the descriptors that must go with a frame in arena `number`."""
        with self._lock:
            while len(self._arenas) > 1 and self._arenas[0].number < number and self._arenas[0].is_free:
                self._arenas.pop(0).close()
            new = [arena for arena in self._arenas if arena.descriptor is not None and arena.number <= number]
            oldest = self._arenas[0].number
        return oldest, [arena.descriptor for arena in new]  # type: ignore[misc]

    def finish_handover(self, descriptors: Sequence[int]) -> None:
        """Note that the other side has these descriptors now."""
        for arena in self._arenas:
            if arena.descriptor in descriptors:
                os.close(arena.descriptor)  # type: ignore[arg-type]
                arena.descriptor = None

    @property
    def num_bytes(self) -> int:
        """Size of the shared memory in use."""
        return sum(arena.size for arena in self._arenas)

    def close(self) -> None:
        """Free all of it."""
        with self._lock:
            self._is_closed = True
            while self._arenas:
                self._arenas.pop().close()

    def _take_region(self, size: int) -> tuple[_Arena, int]:
        with self._lock:
            if self._is_closed:
                raise WorkerError("the link to the worker is closed")
            newest = self._arenas[-1] if self._arenas else None
            start = None if newest is None else newest.take_region(size)
            if start is None:
                doubled = self._first_bytes if newest is None else min(2 * newest.size, MAX_DOUBLED_BYTES)
                newest = _Arena(self._num_made, max(doubled, size))
                self._num_made += 1
                self._arenas.append(newest)
                start = newest.take_region(size)
            assert newest is not None and start is not None
            return newest, start


class Inbox:
    """Frames from the other side."""

    def __init__(self) -> None:
        self._arenas: dict[int, mmap.mmap] = {}
        self._num_mapped = 0

    def add_arena(self, descriptor: int) -> None:
        """Map the next arena and close its descriptor."""
        try:
            self._arenas[self._num_mapped] = mmap.mmap(descriptor, 0)
        except (OSError, ValueError) as error:
            raise WorkerError(f"shared memory cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        self._num_mapped += 1

    def take_frame(self, number: int, start: int, size: int, oldest: int) -> Buffer:
        """A copy of the bytes of a frame. Its region is freed."""
        memory = self._arenas.get(number)
        first = start + ALIGNMENT
        if memory is None or first + size > len(memory):
            raise EncodingError(f"frame of {size} bytes at {start} of arena {number}, which is not there")
        data: Buffer
        if size < LARGE_BYTES:
            data = memory[first : first + size]
        else:
            data = np.frombuffer(memory, np.uint8, size, first).copy()
        memory[start] = 0
        for outgrown in [each for each in self._arenas if each < oldest]:
            _close_mapping(self._arenas.pop(outgrown))
        return data

    def close(self) -> None:
        """Free all of it."""
        while self._arenas:
            _close_mapping(self._arenas.popitem()[1])


def _copy_in(memory: mmap.mmap, offset: int, part: Any) -> int:
    size = memoryview(part).nbytes
    if size < LARGE_BYTES:
        memory[offset : offset + size] = part
    else:
        target = np.frombuffer(memory, np.uint8, size, offset)
        target[:] = np.frombuffer(part, np.uint8)
    return offset + size


def _close_mapping(memory: mmap.mmap) -> None:
    with contextlib.suppress(BufferError):  # a copy that still runs in a thread frees it at its end
        memory.close()
