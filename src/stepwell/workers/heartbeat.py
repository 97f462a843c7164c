"""A page of shared memory on which a worker shows that it is alive, without sending anything.

    beat_s       time of the last heartbeat (of a thread that does nothing else)
    memory_mb    resident memory at that time
    progress_s   time of the last progress: a call began or ended, an environment made a step
    num_calls    calls that are being answered

Times are of the machine's monotonic clock, which all its processes share: a parent that was delayed itself
does not blame the worker for the delay. A worker is stuck if its heartbeat stopped (the process is stopped,
or some code holds the interpreter), or if it has a call and makes no progress although the heart beats.
"""

from __future__ import annotations

import mmap
import threading
import time

from stepwell.core.process_memory import read_resident_mb

_BEAT, _MEMORY, _PROGRESS, _CALLS = range(4)
PAGE_BYTES = 4 * 8


class HeartbeatPage:
    """One such page, given its descriptor. Parent and worker both map it."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        self._values = memoryview(self._page).cast("d")

    # --- written by the worker ------------------------------------------------------------

    def beat(self) -> None:
        """Note that the process runs."""
        self._values[_MEMORY] = read_resident_mb()
        self._values[_BEAT] = time.monotonic()

    def note_progress(self) -> None:
        """Note that the work goes on."""
        self._values[_PROGRESS] = time.monotonic()

    def show_calls(self, num_calls: int, progress_s: float) -> None:
        """Note how many calls there are, and the time of the last progress."""
        self._values[_PROGRESS], self._values[_CALLS] = progress_s, num_calls

    def begin_call(self) -> None:
        """Count one more call."""
        self.note_progress()
        self._values[_CALLS] += 1

    def end_call(self) -> None:
        """Count one call less."""
        self.note_progress()
        self._values[_CALLS] -= 1

    # --- read by the parent ---------------------------------------------------------------

    @property
    def silent_s(self) -> float:
        """Time since the last heartbeat."""
        return time.monotonic() - self._values[_BEAT]

    @property
    def stuck_s(self) -> float:
        """Time without progress while it has calls; 0 if it has none."""
        return time.monotonic() - self._values[_PROGRESS] if self._values[_CALLS] else 0.0

    @property
    def memory_mb(self) -> float:
        """Resident memory at the last heartbeat."""
        return self._values[_MEMORY]

    @property
    def num_calls(self) -> int:
        """Calls that are being answered."""
        return int(self._values[_CALLS])

    def close(self) -> None:
        """Unmap the page."""
        self._values.release()
        self._page.close()


class CallTracker:
    """Concurrent calls: the page shows the call that has made no progress for the longest time.

    So a call that is stuck is found although others go on.
    """

    def __init__(self, page: HeartbeatPage) -> None:
        self._page = page
        self._progress_s: dict[int, float] = {}

    def begin_call(self, call: int) -> None:
        """Note that a call began."""
        self._progress_s[call] = time.monotonic()
        self._show_calls()

    def note_progress(self, call: int) -> None:
        """Note that the work of a call goes on."""
        if call in self._progress_s:
            self.begin_call(call)

    def end_call(self, call: int) -> None:
        """Forget a call that is answered."""
        del self._progress_s[call]
        self._show_calls()

    def _show_calls(self) -> None:
        oldest_s = min(self._progress_s.values(), default=time.monotonic())
        self._page.show_calls(len(self._progress_s), oldest_s)


def start_heartbeat(page: HeartbeatPage, heartbeat_s: float) -> None:
    """Beat from now on, in a thread that ends with the process."""

    def run() -> None:
        while True:
            time.sleep(heartbeat_s)
            page.beat()

    page.beat()
    threading.Thread(target=run, name="heartbeat", daemon=True).start()
