"""The dynamic batcher: decides when waiting requests become a batch, and which of them.

Callers submit *bundles*: requests that arrived together and must be served together
(the siblings of a group, the robots of one simulator). Bundles wait in a queue, and a
batch is fired as soon as `max_batch_size` samples wait or the oldest bundle has waited
`max_wait_ms`, whichever comes first. Every engine has one of these in front of it.

`BatchQueue` is the rule itself. It is plain data and takes the time as an argument, so it
can be tested exactly. `DynamicBatcher` is its asyncio interface: waiting, timers, futures.

Invariants
* Sizes count samples, never bundles, and a bundle is never split. A bundle larger than
  `max_batch_size` is sent as a batch of its own (the engine can queue internally). One
  larger than `max_queue` could never be admitted and is refused.
* Bundles go in order of arrival, or of the caller's `order` key (ties by arrival). The
  first bundle that does not fit ends the batch: small bundles do not overtake it.
* A batch fired by the clock contains the bundle that has waited longest, whatever `order`
  says, so that no order can starve a bundle. Without a wait (`max_wait_ms=0`) every bundle
  is due at once and `order` alone decides.
* At most `max_queue` samples wait. `submit` then waits for room, in order of arrival.
* No thread, no task, no sleep: only callbacks of the injected clock.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from stepwell.core.errors import ConfigError, InputError, QueueFullError

T = TypeVar("T")
R = TypeVar("R")
SWITCH_INTERVAL_S = 0.0001


def shorten_switch_interval() -> None:
    """Let threads of this process keep Python's lock for a short time only; a shorter time stays.

    An engine's thread gives the lock up in every operation of torch. A thread that renders prompts or serves
    callers then keeps it for a whole interval, 5 ms by default, many times in a step
    (`benchmarks/engine_beside_python.py`).
    """
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))


@dataclass(slots=True, eq=False)
class RequestBundle(Generic[T]):
    """Requests that one caller submitted and that stay together, with their arrival time."""

    items: list[T]
    arrived_s: float
    future: asyncio.Future[Any] | None = None

    def __len__(self) -> int:
        return len(self.items)


class BatchQueue(Generic[T]):
    """The firing rule over a bounded queue. Pure: the time is an argument."""

    def __init__(
        self,
        max_batch_size: int,
        max_wait_ms: float = 0.0,
        max_queue: int = 4096,
        order: Callable[[RequestBundle[T]], Any] | None = None,
    ) -> None:
        self.max_queue = max_queue
        self.change_limits(max_batch_size, max_wait_ms)
        self._order = order
        self._bundles: list[RequestBundle[T]] = []
        self.num_waiting = 0

    def change_limits(self, max_batch_size: int, max_wait_ms: float) -> None:
        """Set when a batch is due, also for bundles that wait already."""
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size must be at least 1, got {max_batch_size}")
        if not 0.0 <= max_wait_ms < float("inf"):
            raise ConfigError(f"max_wait_ms must be finite and not negative, got {max_wait_ms}")
        if self.max_queue < max_batch_size:
            raise ConfigError(
                f"max_queue ({self.max_queue}) is below max_batch_size ({max_batch_size}): "
                "the queue could never hold a full batch; raise max_queue"
            )
        self.max_batch_size = max_batch_size
        self._wait_s = max_wait_ms / 1000.0

    def has_room(self, num_samples: int) -> bool:
        """Whether that many more samples may wait now."""
        return self.num_waiting + num_samples <= self.max_queue

    def push(self, bundle: RequestBundle[T]) -> None:
        """Add a bundle; raises `QueueFullError` when the queue has no room for it."""
        if not self.has_room(len(bundle)):
            raise QueueFullError(
                f"the queue is full: {self.num_waiting} of at most max_queue={self.max_queue} samples wait, "
                f"no room for {len(bundle)} more; submit later or raise max_queue"
            )
        self._bundles.append(bundle)
        self.num_waiting += len(bundle)

    def cancel(self, bundle: RequestBundle[T]) -> bool:
        """Remove a waiting bundle. Returns False if it no longer waits."""
        if bundle not in self._bundles:
            return False
        self._bundles.remove(bundle)
        self.num_waiting -= len(bundle)
        return True

    def get_deadline(self) -> float | None:
        """Return the time at which the clock alone fires a batch; None when nothing waits."""
        return min(bundle.arrived_s for bundle in self._bundles) + self._wait_s if self._bundles else None

    def pop_ready(self, now: float, room: int | None = None) -> list[RequestBundle[T]]:
        """Remove and return the batch that is due at `now`; empty if none is due.

        `room` limits the batch further (samples the engine can take). An oversized bundle
        passes if `room` is None or large enough.
        """
        deadline = self.get_deadline()
        if deadline is None:
            return []
        overdue = now >= deadline
        if not overdue and self.num_waiting < self.max_batch_size:
            return []
        batch = self._fill_batch(self._sort_bundles(oldest_first=overdue and self._wait_s > 0), room)
        taken = set(map(id, batch))
        self._bundles = [bundle for bundle in self._bundles if id(bundle) not in taken]
        self.num_waiting -= sum(map(len, batch))
        return batch

    def _sort_bundles(self, oldest_first: bool) -> list[RequestBundle[T]]:
        ordered = sorted(self._bundles, key=self._order) if self._order else list(self._bundles)
        if oldest_first:
            oldest = min(self._bundles, key=lambda bundle: bundle.arrived_s)
            ordered.remove(oldest)
            ordered.insert(0, oldest)
        return ordered

    def _fill_batch(self, ordered: list[RequestBundle[T]], room: int | None) -> list[RequestBundle[T]]:
        batch: list[RequestBundle[T]] = []
        size = 0
        for bundle in ordered:
            alone = not batch and len(bundle) > self.max_batch_size
            over = size + len(bundle) > self.max_batch_size and not alone
            if over or (room is not None and size + len(bundle) > room):
                break
            batch.append(bundle)
            size += len(bundle)
        return batch


class Timer(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The time functions that the batcher needs; an asyncio event loop has both."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


@dataclass(eq=False)
class DynamicBatcher(Generic[T, R]):
    """Collects bundles from many tasks and passes batches of them to `start`.

    `start(bundles)` must give each `bundle.future` a list of results, one per item, or an
    exception. A future that is already cancelled has no waiting caller any more.
    `max_inflight` limits the samples that are sent and not yet answered (None: no limit);
    while nothing is in flight a batch is always sent, whatever its size.
    """

    start: Callable[[list[RequestBundle[T]]], None]
    queue: BatchQueue[T]
    max_inflight: int | None = None
    clock: Clock | None = None
    num_inflight: int = field(default=0, init=False)
    _unadmitted: deque[RequestBundle[T]] = field(default_factory=deque, init=False)
    _timer: Timer | None = field(default=None, init=False)

    async def submit(self, items: Sequence[T]) -> list[R]:
        """Return the results of `items`, in order. Waits for room; cancelling the task withdraws them."""
        return await self.enqueue(items)

    def enqueue(self, items: Sequence[T]) -> asyncio.Future[list[R]]:
        """Submit `items` and return a future; cancelling it withdraws them."""
        bundle = self._make_bundle(items)
        self._unadmitted.append(bundle)
        self._fire_ready()
        assert bundle.future is not None
        return bundle.future

    def _make_bundle(self, items: Sequence[T]) -> RequestBundle[T]:
        if not items:
            raise InputError("submit got no items; submit at least one request")
        if len(items) > self.queue.max_queue:
            raise InputError(
                f"{len(items)} requests submitted together never fit a queue of "
                f"max_queue={self.queue.max_queue}; raise max_queue or submit them in parts"
            )
        future = asyncio.get_running_loop().create_future()
        bundle = RequestBundle(list(items), self._get_clock().time(), future)
        future.add_done_callback(lambda _: self._withdraw_bundle(bundle))
        return bundle

    def _withdraw_bundle(self, bundle: RequestBundle[T]) -> None:
        """Remove a bundle whose future was done before it was sent: it was cancelled while waiting."""
        if bundle in self._unadmitted:
            self._unadmitted.remove(bundle)
        if self.queue.cancel(bundle):
            self._fire_ready()

    def _fire_ready(self) -> None:
        """Admit bundles, send the batches that are due, and set the timer for the rest."""
        while True:
            while self._unadmitted and self.queue.has_room(len(self._unadmitted[0])):
                self.queue.push(self._unadmitted.popleft())
            batch = self.queue.pop_ready(self._get_clock().time(), self._count_room())
            if not batch:
                break
            self._send_batch(batch)
        self._set_timer()

    def _count_room(self) -> int | None:
        if self.max_inflight is None or self.num_inflight == 0:
            return None
        return self.max_inflight - self.num_inflight

    def _send_batch(self, batch: list[RequestBundle[T]]) -> None:
        for bundle in batch:
            assert bundle.future is not None
            self.num_inflight += len(bundle)
            bundle.future.add_done_callback(partial(self._finish_bundle, len(bundle)))
        self.start(batch)

    def _finish_bundle(self, num_samples: int, _: asyncio.Future[Any]) -> None:
        self.num_inflight -= num_samples
        self._fire_ready()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.queue.get_deadline()
        if deadline is not None and deadline > self._get_clock().time():
            self._timer = self._get_clock().call_at(deadline, self._fire_ready)

    def _get_clock(self) -> Clock:
        return self.clock if self.clock is not None else asyncio.get_running_loop()
