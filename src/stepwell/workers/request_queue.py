"""The global request queue: from environment batches that ask to generators that answer.

    env batch ─ post ─► shard ─► slots ─┬─ for any generator ─► shared queue ─┐ due: size or age ─► generate
                                        └─ for one of them ───► its own queue ─┘

The firing rule is that of `engines.batcher.BatchQueue`: a batch goes out when `max_batch` samples wait or
the oldest slot has waited `max_wait_ms`, to a generator that has room for it; a slot is never split. The
order is that of arrival, or of the caller's `priority` (which cannot starve a slot: what is overdue goes
first). While every generator is busy slots gather, so that batches grow by themselves under load.

Invariants
* Every slot that was posted is answered exactly once, by samples or by the error of its generator.
* A generator has at most `max_inflight` batches under way; its own queue comes before the shared one.
* Nothing here knows what an episode is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.core import EngineError, Sampled
from stepwell.engines.batcher import BatchQueue, RequestBundle
from stepwell.workers.busy_times import Spans
from stepwell.workers.contracts import Generator
from stepwell.workers.shards import Ask, GeneratorLoad, Shard, check_cuts, none

Priority = Callable[[RequestBundle[Ask]], Any]
_UNBOUNDED = 1 << 30  # environments bound what can wait: each asks for one action at a time
_MEMORY = 0.8  # of earlier latencies, when a new one is seen


@dataclass(slots=True)
class Posted:
    """A slot that was queued: the numbers of its requests among those posted, and its answer."""

    indices: tuple[int, ...]
    answer: asyncio.Future[list[Sampled]]


@dataclass(slots=True)
class QueueCounts:
    """What went through since the start."""

    num_requests: int = 0
    num_batches: int = 0
    waited_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Desk:
    """A generator, what waits for it alone, and how fast it is."""

    generator: Generator
    queue: BatchQueue[Ask]
    num_batches: int = 0
    num_samples: int = 0
    sample_s: float = 0.0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class RequestQueue:
    """Gathers slots and hands batches of them to generators. Lives on one event loop."""

    def __init__(
        self,
        generators: Sequence[Generator],
        *,
        max_batch: int,
        max_wait_ms: float,
        shard: Shard = none,
        priority: Priority | None = None,
        max_inflight: int = 1,
        spans: Spans | None = None,
    ) -> None:
        def queue() -> BatchQueue[Ask]:
            return BatchQueue(max_batch, max_wait_ms, _UNBOUNDED, priority)

        self._desks = [_Desk(generator, queue()) for generator in generators]
        self._shared = queue()
        self._shard, self._max_inflight = shard, max_inflight
        self.spans = spans or Spans()
        for generator in generators:
            self.spans.enter("generators", generator.name)
        self._timer: asyncio.TimerHandle | None = None
        self.counts = QueueCounts()

    @property
    def num_waiting(self) -> int:
        """Samples in slots that no generator has yet."""
        return self._shared.num_waiting + sum(desk.queue.num_waiting for desk in self._desks)

    def post(self, asks: Sequence[Ask]) -> list[Posted]:
        """Queue the requests of one environment batch, cut into slots."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        cuts = self._shard(asks, self.loads())
        check_cuts(cuts, len(asks), len(self._desks))
        posted = []
        for cut in cuts:
            slot = RequestBundle([asks[i] for i in cut.indices], now, loop.create_future())
            queue = self._shared if cut.generator is None else self._desks[cut.generator].queue
            queue.push(slot)
            assert slot.future is not None
            posted.append(Posted(cut.indices, slot.future))
        self._pump()
        return posted

    def post_at_once(self, asks: Sequence[Ask]) -> list[Posted]:
        """One call to each generator for all of these now, equal shares: the lock-step way."""
        loop = asyncio.get_running_loop()
        count, posted = len(self._desks), []
        for i, desk in enumerate(self._desks):
            indices = tuple(range(len(asks) * i // count, len(asks) * (i + 1) // count))
            if indices:
                slot = RequestBundle([asks[j] for j in indices], loop.time(), loop.create_future())
                assert slot.future is not None
                posted.append(Posted(indices, slot.future))
                self._send(desk, [slot])
        return posted

    def loads(self) -> list[GeneratorLoad]:
        """How busy each generator is."""
        return [
            GeneratorLoad(desk.generator.name, desk.queue.num_waiting, desk.num_samples, desk.sample_s)
            for desk in self._desks
        ]

    def close(self) -> None:
        """Call off what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        for desk in self._desks:
            for task in desk.tasks:
                task.cancel()

    def _pump(self) -> None:
        """Hand out every batch that is due and has somewhere to go; then wait for the next deadline."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._hand_out(now):
            pass
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadlines = [self._shared.next_deadline()] + [desk.queue.next_deadline() for desk in self._free()]
        later = [at for at in deadlines if at is not None and at > now]
        if later and self._free():
            self._timer = loop.call_at(min(later), self._pump)

    def _free(self) -> list[_Desk]:
        return [desk for desk in self._desks if desk.num_batches < self._max_inflight]

    def _hand_out(self, now: float) -> bool:
        """Give one batch to the least busy free generator that there is one for."""
        for desk in sorted(self._free(), key=lambda desk: desk.num_samples):
            for queue in (desk.queue, self._shared):
                slots = queue.pop_ready(now)
                if slots:
                    self._send(desk, slots)
                    return True
        return False

    def _send(self, desk: _Desk, slots: list[RequestBundle[Ask]]) -> None:
        size = sum(map(len, slots))
        now = asyncio.get_running_loop().time()
        self.counts.num_batches += 1
        self.counts.num_requests += size
        self.counts.waited_s += sum(len(slot) * (now - slot.arrived_s) for slot in slots)
        desk.num_batches += 1
        desk.num_samples += size
        task = asyncio.ensure_future(self._answer(desk, slots, size, now))
        desk.tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(desk.tasks.discard)

    async def _answer(self, desk: _Desk, slots: list[RequestBundle[Ask]], size: int, began_s: float) -> None:
        try:
            with self.spans.working("generators", desk.generator.name):
                found = await desk.generator.generate([ask.request for slot in slots for ask in slot.items])
            if len(found) != size:
                raise EngineError(f"{desk.generator.name} gave {len(found)} samples for {size} requests")
        except Exception as error:
            self._landed(desk, size, None)
            for slot in slots:
                if slot.future is not None and not slot.future.done():
                    slot.future.set_exception(error)
            return
        self._landed(desk, size, asyncio.get_running_loop().time() - began_s)
        start = 0
        for slot in slots:
            if slot.future is not None and not slot.future.done():
                slot.future.set_result(found[start : start + len(slot)])
            start += len(slot)

    def _landed(self, desk: _Desk, size: int, took_s: float | None) -> None:
        desk.num_batches -= 1
        desk.num_samples -= size
        if took_s is not None:
            new = took_s / size
            desk.sample_s = _MEMORY * desk.sample_s + (1 - _MEMORY) * new if desk.sample_s else new
        self._pump()
