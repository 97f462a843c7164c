"""The page of shared memory in which a worker says how it is, without sending anything.

    beat_s       when its heartbeat last struck (a thread that does nothing else)
    memory_mb    what it occupied then
    progress_s   when the work last went on: a call began or ended, a world stepped
    num_calls    calls it is at

Times are those of the machine's monotonic clock, which all processes of a machine share: a parent that
was held up itself does not take its own pause for the worker's. A worker is stuck if its heart stopped
(it was stopped, or something holds the interpreter), or if it is at a call and the work does not go on
although the heart beats.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time

_BEAT, _MEMORY, _PROGRESS, _CALLS = range(4)
MARKS_BYTES = 4 * 8


class Marks:
    """One such page, given its descriptor; both sides have it."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, MARKS_BYTES)
        self._values = memoryview(self._page).cast("d")

    # --- the worker's side ----------------------------------------------------------------

    def beat(self) -> None:
        """The heart strikes."""
        self._values[_MEMORY] = resident_mb()
        self._values[_BEAT] = time.monotonic()

    def progress(self) -> None:
        """The work goes on."""
        self._values[_PROGRESS] = time.monotonic()

    def begin(self) -> None:
        """One more call."""
        self.progress()
        self._values[_CALLS] += 1

    def end(self) -> None:
        """One call less."""
        self.progress()
        self._values[_CALLS] -= 1

    # --- the parent's ---------------------------------------------------------------------

    @property
    def silent_s(self) -> float:
        """Since the last heartbeat."""
        return time.monotonic() - self._values[_BEAT]

    @property
    def stuck_s(self) -> float:
        """For how long it has been at calls without getting on."""
        return time.monotonic() - self._values[_PROGRESS] if self._values[_CALLS] else 0.0

    @property
    def memory_mb(self) -> float:
        """What it occupied at the last heartbeat."""
        return self._values[_MEMORY]

    def close(self) -> None:
        """Let go of the page."""
        self._values.release()
        self._page.close()


def start_heart(marks: Marks, heartbeat_s: float) -> None:
    """Beat from now on, in a thread that ends with the process."""

    def run() -> None:
        while True:
            time.sleep(heartbeat_s)
            marks.beat()

    marks.beat()
    threading.Thread(target=run, name="heart", daemon=True).start()


def resident_mb() -> float:
    """Memory of this process that is in RAM, in MiB; where the system does not say, its highest."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
