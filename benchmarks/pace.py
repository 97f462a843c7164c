"""How fast this machine is at every moment: a yardstick for measurements that last minutes on a shared host.

A virtual machine's processors may be half as fast a minute later, and what is compared was measured at
different times. A thread does the same small piece of arithmetic four times a second and notes the processor
time it took (waiting for a core or the GIL does not count). `between` is its mean over some seconds, in units
of the first readings: 1.2 says that the same work took a fifth longer then.
"""

from __future__ import annotations

import threading
import time

import numpy as np

NUM_ROUNDS, EVERY_S, NUM_FIRST = 20_000, 0.25, 8


class Pace:
    """Readings of the yardstick, from `with` to its end."""

    def __init__(self) -> None:
        self._readings: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Pace:
        self._thread.start()
        time.sleep(NUM_FIRST * EVERY_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def between(self, began: float, ended: float) -> float:
        """How long the work took between two moments of `time.time()`; the first readings are 1."""
        readings = list(self._readings)
        first = np.mean([spent for _, spent in readings[:NUM_FIRST]])
        near = [spent for at, spent in readings if began - EVERY_S <= at <= ended + EVERY_S]
        return float(np.mean(near or [spent for _, spent in readings]) / first)

    def _read(self) -> None:
        while not self._over.wait(EVERY_S):
            began, total = time.thread_time(), 0
            for number in range(NUM_ROUNDS):
                total += number * number & 7
            self._readings.append((time.time(), time.thread_time() - began))
