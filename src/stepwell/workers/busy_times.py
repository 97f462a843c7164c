"""Who worked when: busy times of every worker, exact in sum and bounded in detail.

A worker is busy while at least one call to it is under way; calls that overlap count once. Sums are
kept for the whole run. Single spans, from which the timeline picture is drawn, are kept for the last
part of it only: at most `keep` of each worker.

Invariant: shares are those of the time between two marks, whatever was forgotten in between.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

GROUPS = ("simulators", "generators", "trainers")


@dataclass(slots=True, eq=False)
class _Worker:
    busy_s: float = 0.0
    depth: int = 0
    since_s: float = 0.0
    spans: deque[tuple[float, float]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, and how long each worker had been busy until then."""

    at_s: float
    busy_s: dict[tuple[str, str], float]

    def shares(self, later: Mark) -> dict[str, float]:
        """Busy share of each group between two marks."""
        elapsed = later.at_s - self.at_s
        totals: dict[str, list[float]] = {}
        for key, busy_s in later.busy_s.items():
            totals.setdefault(key[0], []).append(busy_s - self.busy_s.get(key, 0.0))
        return {
            group: sum(row) / (len(row) * elapsed) if elapsed > 0 else 0.0 for group, row in totals.items()
        }


class Spans:
    """Collects spans; any thread may add to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, keep: int = 2000) -> None:
        self._clock, self._keep = clock, keep
        self._workers: dict[tuple[str, str], _Worker] = {}
        self._lock = threading.Lock()
        self.began_s = clock()

    def enter(self, group: str, worker: str) -> None:
        """Make a worker known, so that one that never works shows as idle."""
        assert group in GROUPS, f"groups are {GROUPS}, got {group!r}"
        with self._lock:
            self._workers.setdefault((group, worker), _Worker(spans=deque(maxlen=self._keep)))

    def begin(self, group: str, worker: str) -> None:
        """A call to the worker starts."""
        with self._lock:
            one = self._workers[group, worker]
            if one.depth == 0:
                one.since_s = self._clock()
            one.depth += 1

    def end(self, group: str, worker: str) -> None:
        """A call to it is answered, or failed."""
        with self._lock:
            one = self._workers[group, worker]
            assert one.depth > 0, f"{worker} ends what it did not begin"
            one.depth -= 1
            if one.depth == 0:
                now = self._clock()
                one.busy_s += now - one.since_s
                one.spans.append((one.since_s, now))

    @contextmanager
    def working(self, group: str, worker: str) -> Iterator[None]:
        """Around a call."""
        self.begin(group, worker)
        try:
            yield
        finally:
            self.end(group, worker)

    def mark(self) -> Mark:
        """Now."""
        with self._lock:
            now = self._clock()
            busy = {
                key: one.busy_s + (now - one.since_s if one.depth else 0.0)
                for key, one in self._workers.items()
            }
        return Mark(now, busy)

    def timeline(self, last_s: float = 60.0) -> dict[str, Any]:
        """The last seconds as plain data: one row per worker, spans relative to the row's start.

        The window begins where every worker's spans are still kept.
        """
        with self._lock:
            now = self._clock()
            start = max(self.began_s, now - last_s)
            for one in self._workers.values():
                if len(one.spans) == self._keep:
                    start = max(start, one.spans[0][0])
            rows = []
            for (group, worker), one in sorted(self._workers.items(), key=_by_group):
                spans = [*one.spans, *([(one.since_s, now)] if one.depth else [])]
                seen = [(max(a, start) - start, b - start) for a, b in spans if b > start]
                rows.append(
                    {"group": group, "worker": worker, "spans": [[round(a, 5), round(b, 5)] for a, b in seen]}
                )
        return {"seconds": round(now - start, 5), "rows": rows}


def _by_group(item: tuple[tuple[str, str], _Worker]) -> tuple[int, str]:
    (group, worker), _ = item
    return GROUPS.index(group), worker
