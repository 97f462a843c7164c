"""The dynamic batcher: when waiting requests become a batch, and which of them.

Callers submit *slots*: the requests that arrived together and must be served together
(the siblings of a group, the robots of one simulator). Slots gather in a queue, and a
batch is fired as soon as `max_batch_size` samples wait or the oldest slot has waited
`max_wait_ms`, whichever comes first. Every engine stands behind one of these.

`BatchQueue` is the rule itself: plain data and the time handed in, so it can be tested
to the tick. `DynamicBatcher` is its asyncio face and adds waiting, timers and futures.

Invariants
* Sizes count samples, never slots, and a slot is never split. A slot larger than
  `max_batch_size` is sent as a batch of its own (an engine can queue inside, a caller
  cannot unsplit); one larger than `max_queue` could never be admitted and is refused.
* Slots go in order of arrival, or of the caller's `order` key (ties by arrival). The
  first slot that does not fit ends the batch: nothing overtakes it by being small.
* A batch fired by the clock holds the slot that has waited longest, whatever `order`
  says, so that no order can starve a slot. Without a wait (`max_wait_ms=0`) every slot
  is due at once and `order` alone decides.
* At most `max_queue` samples wait. `submit` then waits its turn for room, in order;
  `submit_nowait` raises `QueueFullError`.
* No thread, no task, no sleep: only callbacks of the injected clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from stepwell.core.errors import ConfigError, InputError, QueueFullError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Slot(Generic[T]):
    """What one caller submitted: samples that stay together, and when they came."""

    items: list[T]
    arrived_s: float
    future: asyncio.Future[Any] | None = None

    def __len__(self) -> int:
        return len(self.items)


class BatchQueue(Generic[T]):
    """The firing rule over a bounded queue. Pure: time comes in as an argument."""

    def __init__(
        self,
        max_batch_size: int,
        max_wait_ms: float = 0.0,
        max_queue: int = 4096,
        order: Callable[[Slot[T]], Any] | None = None,
    ) -> None:
        if max_batch_size < 1:
            raise ConfigError(f"max_batch_size must be at least 1, got {max_batch_size}")
        if not 0.0 <= max_wait_ms < float("inf"):
            raise ConfigError(f"max_wait_ms must be finite and not negative, got {max_wait_ms}")
        if max_queue < max_batch_size:
            raise ConfigError(
                f"max_queue ({max_queue}) is below max_batch_size ({max_batch_size}): "
                "a full batch could never gather; raise max_queue"
            )
        self.max_batch_size = max_batch_size
        self.max_queue = max_queue
        self._wait_s = max_wait_ms / 1000.0
        self._order = order
        self._slots: list[Slot[T]] = []
        self.num_waiting = 0

    def fits(self, num_samples: int) -> bool:
        """Whether that many more samples may wait now."""
        return self.num_waiting + num_samples <= self.max_queue

    def push(self, slot: Slot[T]) -> None:
        """Let a slot wait; refused when the queue has no room for it."""
        if not self.fits(len(slot)):
            raise QueueFullError(
                f"max_queue={self.max_queue} samples are the limit and {self.num_waiting} wait: "
                f"no room for {len(slot)} more; submit later or raise max_queue"
            )
        self._slots.append(slot)
        self.num_waiting += len(slot)

    def cancel(self, slot: Slot[T]) -> bool:
        """Take a waiting slot out again. False if it no longer waits."""
        if slot not in self._slots:
            return False
        self._slots.remove(slot)
        self.num_waiting -= len(slot)
        return True

    def next_deadline(self) -> float | None:
        """When the clock alone will fire a batch; None when nothing waits."""
        return min(slot.arrived_s for slot in self._slots) + self._wait_s if self._slots else None

    def pop_ready(self, now: float, room: int | None = None) -> list[Slot[T]]:
        """The batch that is due at `now`, or nothing.

        `room` bounds the batch further (samples the engine can take); an oversize slot
        passes when `room` is None or holds it.
        """
        deadline = self.next_deadline()
        if deadline is None:
            return []
        overdue = now >= deadline
        if not overdue and self.num_waiting < self.max_batch_size:
            return []
        batch = self._fill(self._ordered(oldest_first=overdue and self._wait_s > 0), room)
        taken = set(map(id, batch))
        self._slots = [slot for slot in self._slots if id(slot) not in taken]
        self.num_waiting -= sum(map(len, batch))
        return batch

    def _ordered(self, oldest_first: bool) -> list[Slot[T]]:
        ordered = sorted(self._slots, key=self._order) if self._order else list(self._slots)
        if oldest_first:
            oldest = min(self._slots, key=lambda slot: slot.arrived_s)
            ordered.remove(oldest)
            ordered.insert(0, oldest)
        return ordered

    def _fill(self, ordered: list[Slot[T]], room: int | None) -> list[Slot[T]]:
        batch: list[Slot[T]] = []
        size = 0
        for slot in ordered:
            alone = not batch and len(slot) > self.max_batch_size
            over = size + len(slot) > self.max_batch_size and not alone
            if over or (room is not None and size + len(slot) > room):
                break
            batch.append(slot)
            size += len(slot)
        return batch


class Timer(Protocol):
    """A callback that was asked for and can be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What the batcher needs of time: an asyncio event loop has both methods."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer: ...


@dataclass(eq=False)
class DynamicBatcher(Generic[T, R]):
    """Gathers slots from many tasks and hands batches of them to `start`.

    `start(slots)` must see to it that each `slot.future` gets a list of results, one per
    item, or an exception; a future that is already cancelled means nobody waits any more.
    `max_inflight` bounds the samples handed out and not yet answered (None: no bound);
    while nothing is in flight a batch always goes out, whatever its size.
    """

    start: Callable[[list[Slot[T]]], None]
    queue: BatchQueue[T]
    max_inflight: int | None = None
    clock: Clock | None = None
    num_inflight: int = field(default=0, init=False)
    _outside: deque[Slot[T]] = field(default_factory=deque, init=False)
    _timer: Timer | None = field(default=None, init=False)

    @classmethod
    def over(
        cls,
        run: Callable[[list[T]], Awaitable[Sequence[R]]],
        queue: BatchQueue[T],
        clock: Clock | None = None,
    ) -> DynamicBatcher[T, R]:
        """A batcher over an engine that takes one whole batch at a time, as a coroutine."""
        running: set[asyncio.Task[None]] = set()
        turn = asyncio.Lock()  # a withdrawn slot frees its place in flight before its batch ends

        def start(slots: list[Slot[T]]) -> None:
            task = asyncio.ensure_future(_run_batch(run, slots, turn))
            running.add(task)  # the loop itself keeps only weak references
            task.add_done_callback(running.discard)

        return cls(start, queue, max_inflight=1, clock=clock)

    async def submit(self, items: Sequence[T]) -> list[R]:
        """Results of `items`, in order. Waits for room; cancelling the task withdraws the slot."""
        return await self.enqueue(items)

    def enqueue(self, items: Sequence[T]) -> asyncio.Future[list[R]]:
        """As `submit`, as a future; cancelling it withdraws the slot."""
        slot = self._slot(items)
        self._outside.append(slot)
        self._pump()
        assert slot.future is not None
        return slot.future

    def submit_nowait(self, items: Sequence[T]) -> Awaitable[list[R]]:
        """As `submit`, but raises `QueueFullError` at once where `submit` would wait for room."""
        slot = self._slot(items)
        if self._outside:
            raise QueueFullError(
                f"{len(self._outside)} earlier submissions wait for room in max_queue={self.queue.max_queue}"
            )
        self.queue.push(slot)
        self._pump()
        return self._answer(slot)

    def _slot(self, items: Sequence[T]) -> Slot[T]:
        if not items:
            raise InputError("submit got no items; a slot holds at least one")
        if len(items) > self.queue.max_queue:
            raise InputError(
                f"a slot of {len(items)} samples never fits a queue of max_queue={self.queue.max_queue}; "
                "raise max_queue or submit it in parts"
            )
        future = asyncio.get_running_loop().create_future()
        slot = Slot(list(items), self._clock().time(), future)
        future.add_done_callback(lambda _: self._withdraw(slot))
        return slot

    async def _answer(self, slot: Slot[T]) -> list[R]:
        assert slot.future is not None
        results: list[R] = await slot.future
        return results

    def _withdraw(self, slot: Slot[T]) -> None:
        """The future is done before the slot was sent: it was cancelled while waiting."""
        if slot in self._outside:
            self._outside.remove(slot)
        if self.queue.cancel(slot):
            self._pump()

    def _pump(self) -> None:
        """Admit, fire what is due, and set the timer for the rest."""
        while True:
            while self._outside and self.queue.fits(len(self._outside[0])):
                self.queue.push(self._outside.popleft())
            batch = self.queue.pop_ready(self._clock().time(), self._room())
            if not batch:
                break
            self._send(batch)
        self._set_timer()

    def _room(self) -> int | None:
        if self.max_inflight is None or self.num_inflight == 0:
            return None
        return self.max_inflight - self.num_inflight

    def _send(self, batch: list[Slot[T]]) -> None:
        for slot in batch:
            assert slot.future is not None
            self.num_inflight += len(slot)
            slot.future.add_done_callback(partial(self._landed, len(slot)))
        self.start(batch)

    def _landed(self, num_samples: int, _: asyncio.Future[Any]) -> None:
        self.num_inflight -= num_samples
        self._pump()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.queue.next_deadline()
        if deadline is not None and deadline > self._clock().time():
            self._timer = self._clock().call_at(deadline, self._pump)

    def _clock(self) -> Clock:
        return self.clock if self.clock is not None else asyncio.get_running_loop()


async def _run_batch(
    run: Callable[[list[T]], Awaitable[Sequence[R]]], slots: list[Slot[T]], turn: asyncio.Lock
) -> None:
    try:
        async with turn:
            results = list(await run([item for slot in slots for item in slot.items]))
        if len(results) != sum(map(len, slots)):
            raise InputError(f"the engine returned {len(results)} results for {sum(map(len, slots))} samples")
    except Exception as error:
        for slot in slots:
            if slot.future is not None and not slot.future.done():
                slot.future.set_exception(error)
        return
    start = 0
    for slot in slots:
        if slot.future is not None and not slot.future.done():
            slot.future.set_result(results[start : start + len(slot)])
        start += len(slot)
