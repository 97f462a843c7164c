"""Busy times of every worker: exact sums, and a bounded number of single spans.

A worker is busy while at least one call to it is pending. Overlapping calls count once. Sums cover the whole
run. Single spans, from which the timeline is drawn, cover the last part of it: at most `keep` per worker.

Invariant: a share is that of the time between two snapshots, whichever spans were dropped in between.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

WORKER_KINDS = ("simulators", "generators", "trainers")


@dataclass(slots=True, eq=False)
class _WorkerTimes:
    busy_s: float = 0.0
    depth: int = 0
    since_s: float = 0.0
    spans: deque[tuple[float, float]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class BusySnapshot:
    """A moment, and the busy time of each worker until then."""

    at_s: float
    busy_s: dict[tuple[str, str], float]

    def compute_shares(self, later: BusySnapshot) -> dict[str, float]:
        """Busy share of each kind of worker between two snapshots."""
        elapsed = later.at_s - self.at_s
        totals: dict[str, list[float]] = {}
        for key, busy_s in later.busy_s.items():
            totals.setdefault(key[0], []).append(busy_s - self.busy_s.get(key, 0.0))
        return {kind: sum(row) / (len(row) * elapsed) if elapsed > 0 else 0.0 for kind, row in totals.items()}


class BusyTimes:
    """Collects busy times. Any thread may add to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, keep: int = 2000) -> None:
        self._clock, self._keep = clock, keep
        self._workers: dict[tuple[str, str], _WorkerTimes] = {}
        self._lock = threading.Lock()
        self.began_s = clock()

    def register(self, kind: str, worker: str) -> None:
        """Add a worker, so that one that never works shows as idle."""
        assert kind in WORKER_KINDS, f"worker kinds are {WORKER_KINDS}, got {kind!r}"
        with self._lock:
            self._workers.setdefault((kind, worker), _WorkerTimes(spans=deque(maxlen=self._keep)))

    def begin(self, kind: str, worker: str) -> None:
        """Note that a call to the worker starts."""
        with self._lock:
            one = self._workers[kind, worker]
            if one.depth == 0:
                one.since_s = self._clock()
            one.depth += 1

    def end(self, kind: str, worker: str) -> None:
        """Note that a call to it is answered or has failed."""
        with self._lock:
            one = self._workers[kind, worker]
            assert one.depth > 0, f"{worker} ends a call that it did not begin"
            one.depth -= 1
            if one.depth == 0:
                now = self._clock()
                one.busy_s += now - one.since_s
                one.spans.append((one.since_s, now))

    @contextmanager
    def track(self, kind: str, worker: str) -> Iterator[None]:
        """Count the time of the `with` block, which makes a call."""
        self.begin(kind, worker)
        try:
            yield
        finally:
            self.end(kind, worker)

    def take_snapshot(self) -> BusySnapshot:
        """The busy times until now."""
        with self._lock:
            now = self._clock()
            busy = {
                key: one.busy_s + (now - one.since_s if one.depth else 0.0)
                for key, one in self._workers.items()
            }
        return BusySnapshot(now, busy)

    def build_timeline(self, last_s: float = 60.0) -> dict[str, Any]:
        """The last seconds as plain data: one row per worker, spans relative to the start of the window.

        The window begins where every worker's spans are still kept.
        """
        with self._lock:
            now = self._clock()
            start = max(self.began_s, now - last_s)
            for one in self._workers.values():
                if len(one.spans) == self._keep:
                    start = max(start, one.spans[0][0])
            rows = []
            for (kind, worker), one in sorted(self._workers.items(), key=_sort_key):
                spans = [*one.spans, *([(one.since_s, now)] if one.depth else [])]
                seen = [(max(a, start) - start, b - start) for a, b in spans if b > start]
                rows.append(
                    {"group": kind, "worker": worker, "spans": [[round(a, 5), round(b, 5)] for a, b in seen]}
                )
        return {"seconds": round(now - start, 5), "rows": rows}


def _sort_key(item: tuple[tuple[str, str], _WorkerTimes]) -> tuple[int, str]:
    (kind, worker), _ = item
    return WORKER_KINDS.index(kind), worker
