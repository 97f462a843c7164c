"""The request queue between all environment batches and all generators.

    env batch ─► post_requests ─► shards ─┬─ for any generator ─► shared queue ─┐ large or old ─► generate
                                          └─ for one of them ───► its own queue ─┘

Each shard waits as one `RequestBundle`. `engines.batcher.BatchQueue` decides when a batch is due: when
`max_batch` samples wait, or the oldest bundle has waited `max_wait_ms`. A due batch goes to a generator that
has room for it. Bundles are served in order of arrival, or by the user's `priority`; overdue ones go first,
so that no priority can starve a bundle. While every generator is busy, bundles gather and batches grow.

Invariants
* Every posted bundle is answered exactly once, by samples or by the error of its generator.
* A generator has at most `max_inflight` batches at a time. Its own queue comes before the shared one.
* Nothing here knows about episodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.core import EngineError, Sampled
from stepwell.engines.batcher import BatchQueue, RequestBundle
from stepwell.workers.busy_times import BusyTimes
from stepwell.workers.contracts import Generator
from stepwell.workers.shards import (
    ActionRequest,
    GeneratorLoad,
    ShardRule,
    check_shards,
    find_shard_rule,
    keep_whole,
)

Priority = Callable[[RequestBundle[ActionRequest]], Any]
_UNBOUNDED = 1 << 30  # environments limit what can wait: each has one request at a time
_MEMORY = 0.8  # weight of earlier latencies against a new one


@dataclass(slots=True)
class PostedBundle:
    """A queued bundle: the indices of its requests among those posted, and its future answer."""

    indices: tuple[int, ...]
    answer: asyncio.Future[list[Sampled]]


@dataclass(slots=True)
class QueueCounts:
    """Totals since the start."""

    num_requests: int = 0
    num_batches: int = 0
    waited_s: float = 0.0


@dataclass(slots=True, eq=False)
class _GeneratorQueue:
    """A generator, its own queue, and how fast it is."""

    generator: Generator
    queue: BatchQueue[ActionRequest]
    num_batches: int = 0
    num_samples: int = 0
    sample_s: float = 0.0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class RequestQueue:
    """Gathers bundles and gives batches of them to generators. Lives on one event loop."""

    def __init__(
        self,
        generators: Sequence[Generator],
        *,
        max_batch: int,
        max_wait_ms: float,
        shard: ShardRule = keep_whole,
        priority: Priority | None = None,
        max_inflight: int = 1,
        busy_times: BusyTimes | None = None,
    ) -> None:
        def make_queue() -> BatchQueue[ActionRequest]:
            return BatchQueue(max_batch, max_wait_ms, _UNBOUNDED, priority)

        self._targets = [_GeneratorQueue(generator, make_queue()) for generator in generators]
        self._shared = make_queue()
        self._shard, self._max_inflight = shard, max_inflight
        self.busy_times = busy_times or BusyTimes()
        for generator in generators:
            self.busy_times.register("generators", generator.name)
        self._timer: asyncio.TimerHandle | None = None
        self._uses_own_queues = False  # with many generators, looking at all their empty queues takes long
        self.counts = QueueCounts()

    @property
    def num_waiting(self) -> int:
        """Samples in bundles that no generator has yet."""
        return self._shared.num_waiting + sum(target.queue.num_waiting for target in self._targets)

    def post_requests(self, requests: Sequence[ActionRequest]) -> list[PostedBundle]:
        """Queue the requests of one environment batch, divided into shards."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        loads = [] if self._shard is keep_whole else self.measure_loads()  # it does not read them
        shards = self._shard(requests, loads)
        check_shards(shards, len(requests), len(self._targets))
        posted = []
        for shard in shards:
            bundle = RequestBundle([requests[i] for i in shard.indices], now, loop.create_future())
            queue = self._shared
            if shard.generator is not None:
                queue, self._uses_own_queues = self._targets[shard.generator].queue, True
            queue.push(bundle)
            assert bundle.future is not None
            posted.append(PostedBundle(shard.indices, bundle.future))
        self._send_due_batches()
        return posted

    def post_at_once(self, requests: Sequence[ActionRequest]) -> list[PostedBundle]:
        """Send equal shares of these to all generators now, one call each (lock step)."""
        loop = asyncio.get_running_loop()
        count, posted = len(self._targets), []
        for i, target in enumerate(self._targets):
            indices = tuple(range(len(requests) * i // count, len(requests) * (i + 1) // count))
            if indices:
                bundle = RequestBundle([requests[j] for j in indices], loop.time(), loop.create_future())
                assert bundle.future is not None
                posted.append(PostedBundle(indices, bundle.future))
                self._send_batch(target, [bundle])
        return posted

    def change_settings(self, max_batch: int, max_wait_ms: float, shard: str) -> None:
        """Other limits of a batch and another shard rule, from now on; what waits already may become due."""
        for queue in (self._shared, *(target.queue for target in self._targets)):
            queue.change_limits(max_batch, max_wait_ms)
        self._shard = find_shard_rule(shard)
        self._send_due_batches()

    def measure_loads(self) -> list[GeneratorLoad]:
        """How busy each generator is."""
        return [
            GeneratorLoad(
                target.generator.name, target.queue.num_waiting, target.num_samples, target.sample_s
            )
            for target in self._targets
        ]

    def close(self) -> None:
        """Cancel the pending calls."""
        if self._timer is not None:
            self._timer.cancel()
        for target in self._targets:
            for task in target.tasks:
                task.cancel()

    def _send_due_batches(self) -> None:
        """Send every batch that is due and has a free generator; then set a timer for the next."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._hand_out_batch(now):
            pass
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        free = self._list_free()
        own = free if self._uses_own_queues else ()
        queues = [target.queue for target in own if target.queue.num_waiting]
        deadlines = [queue.get_deadline() for queue in (self._shared, *queues)]
        later = [at for at in deadlines if at is not None and at > now]
        if later and free:
            self._timer = loop.call_at(min(later), self._send_due_batches)

    def _list_free(self) -> list[_GeneratorQueue]:
        return [target for target in self._targets if target.num_batches < self._max_inflight]

    def _hand_out_batch(self, now: float) -> bool:
        """Send one due batch to the least busy free generator; whether there was one."""
        free = self._list_free()
        if not self._uses_own_queues:
            free = [min(free, key=lambda target: target.num_samples)] if free else []
        elif self._shared.num_waiting == 0:
            free = [target for target in free if target.queue.num_waiting]
        for target in sorted(free, key=lambda target: target.num_samples):
            for queue in (target.queue, self._shared):
                bundles = queue.pop_ready(now)
                if bundles:
                    self._send_batch(target, bundles)
                    return True
        return False

    def _send_batch(self, target: _GeneratorQueue, bundles: list[RequestBundle[ActionRequest]]) -> None:
        size = sum(map(len, bundles))
        now = asyncio.get_running_loop().time()
        self.counts.num_batches += 1
        self.counts.num_requests += size
        self.counts.waited_s += sum(len(bundle) * (now - bundle.arrived_s) for bundle in bundles)
        target.num_batches += 1
        target.num_samples += size
        task = asyncio.ensure_future(self._answer_batch(target, bundles, size, now))
        target.tasks.add(task)  # the event loop holds only weak references
        task.add_done_callback(target.tasks.discard)

    async def _answer_batch(
        self, target: _GeneratorQueue, bundles: list[RequestBundle[ActionRequest]], size: int, began_s: float
    ) -> None:
        try:
            with self.busy_times.track("generators", target.generator.name):
                requests = [item.request for bundle in bundles for item in bundle.items]
                found = await target.generator.generate(requests)
            if len(found) != size:
                raise EngineError(f"{target.generator.name} gave {len(found)} samples for {size} requests")
        except Exception as error:
            self._finish_batch(target, size, None)
            for bundle in bundles:
                if bundle.future is not None and not bundle.future.done():
                    bundle.future.set_exception(error)
            return
        self._finish_batch(target, size, asyncio.get_running_loop().time() - began_s)
        start = 0
        for bundle in bundles:
            if bundle.future is not None and not bundle.future.done():
                bundle.future.set_result(found[start : start + len(bundle)])
            start += len(bundle)

    def _finish_batch(self, target: _GeneratorQueue, size: int, took_s: float | None) -> None:
        target.num_batches -= 1
        target.num_samples -= size
        if took_s is not None:
            new = took_s / size
            target.sample_s = _MEMORY * target.sample_s + (1 - _MEMORY) * new if target.sample_s else new
        self._send_due_batches()
