"""A whole pipeline on one event loop: play, learn, publish, with the real driver, queue and staleness rule.

    make_group ─► GroupStream ─► Driver ─► RequestQueue ─► generators
                      └─► GroupBuffer ─► trainer.update ─► PipelinePublisher ─► generators

The workers are modelled devices in virtual time (`modelled.py`), or real processes in real time
(`benchmarks/planner_reality.py`). The code between them is the same, so a forecast and a run differ only by
what the workers do.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepwell.rollout.jobs import Job
from stepwell.rollout.player import Player
from stepwell.workers.busy_times import BusyTimes
from stepwell.workers.contracts import Generator, Simulator
from stepwell.workers.driver import Driver
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import find_shard_rule
from stepwell.workers.staleness import GroupBuffer, Mode
from stepwell.workers.stream import GroupStream

StartHook = Callable[[Driver, RequestQueue], Awaitable[None]]
"""Runs beside the pipeline until it ends, such as `tuning.tune_queue`."""


class PipelineSettings(Protocol):
    """The settings that queue and staleness rule need; times are in units of the loop's clock."""

    @property
    def max_batch(self) -> int: ...

    @property
    def max_wait(self) -> float: ...

    @property
    def shard(self) -> str: ...

    @property
    def max_inflight(self) -> int: ...

    @property
    def global_batch(self) -> int: ...

    @property
    def group_size(self) -> int: ...

    @property
    def rollout_epochs(self) -> int: ...

    @property
    def max_staleness(self) -> int: ...

    @property
    def sync_interval(self) -> int: ...

    @property
    def weight_sync(self) -> str: ...


@dataclass(slots=True)
class ModelledRun:
    """The result of a modelled run. Throughput counts the environment steps that were trained on."""

    num_updates: int = 0
    num_env_steps: int = 0
    elapsed: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)  # of every step that was trained on
    num_dropped: int = 0
    mean_batch: float = 0.0
    marks: list[tuple[float, int]] = field(default_factory=list)  # (time, steps so far) after each update
    sync_s: float = 0.0  # in which the trainer waited for weights to be copied, or to arrive
    num_syncs: int = 0

    @property
    def throughput(self) -> float:
        return self.num_env_steps / self.elapsed

    def measure_middle(self, skip_first: int, skip_last: int) -> float:
        """The throughput between two updates, without the start and the end of the run."""
        marks = [(0.0, 0), *self.marks]
        (begin_s, before), (end_s, after) = marks[skip_first], marks[len(marks) - 1 - skip_last]
        return (after - before) / (end_s - begin_s)


class PipelineTrainer(Protocol):
    """Who learns from a batch and publishes."""

    async def update(self, num_steps: int, num_stale: int) -> None: ...

    async def copy_weights(self) -> None: ...

    async def send_weights(self, version: int, generators: Sequence[Any]) -> None:
        """Return when every generator has them."""


@dataclass(frozen=True, slots=True)
class PipelineWorkers:
    """The workers of a pipeline: modelled ones, or real ones that only wait."""

    simulators: Sequence[Simulator]
    generators: Sequence[Generator]
    trainer: PipelineTrainer


class PipelinePublisher:
    """Weights on their way, in the order of `runs/build/weight_publisher.py`, on one event loop.

    At most one version is on its way: publishing the next one waits for it first. `version` is that of the
    last weights that every generator has.
    """

    def __init__(
        self, trainer: PipelineTrainer, generators: Sequence[Generator], on_version: Callable[[int], None]
    ) -> None:
        self._trainer, self._generators, self._on_version = trainer, generators, on_version
        self._sending: asyncio.Task[None] | None = None
        self.version = 0
        self.wait_s = 0.0  # of the trainer
        self.num_published = 0

    async def publish(self, version: int) -> None:
        """Copy the weights, and let the generators take the copy while the trainer goes on."""
        await self.finish()
        began = asyncio.get_running_loop().time()
        await self._trainer.copy_weights()
        self.wait_s += asyncio.get_running_loop().time() - began
        self.num_published += 1
        self._sending = asyncio.ensure_future(self._send_all(version))

    async def finish(self) -> None:
        """Wait until every generator has the version that was published last."""
        if self._sending is None:
            return
        began = asyncio.get_running_loop().time()
        await self._sending
        self._sending = None
        self.wait_s += asyncio.get_running_loop().time() - began

    async def await_version(self, version: int) -> None:
        """Wait until samples of this version may be learnt from."""
        if version > self.version:
            await self.finish()

    async def _send_all(self, version: int) -> None:
        await self._trainer.send_weights(version, self._generators)
        self.version = version
        self._on_version(version)


def _build_queue(workers: PipelineWorkers, settings: PipelineSettings, busy_times: BusyTimes) -> RequestQueue:
    return RequestQueue(
        workers.generators,
        max_batch=settings.max_batch,
        max_wait_ms=1000.0 * settings.max_wait,
        shard=find_shard_rule(settings.shard),
        max_inflight=settings.max_inflight,
        busy_times=busy_times,
    )


async def run_pipeline(
    workers: PipelineWorkers,
    settings: PipelineSettings,
    mode: Mode,
    num_updates: int,
    *,
    player: Player,
    make_group: Callable[[int], Sequence[Job]],
    stale_data: str = "drop",
    on_start: StartHook | None = None,
) -> ModelledRun:
    """Play and train with these workers, with the real driver, queue, stream and staleness rule."""
    loop = asyncio.get_running_loop()
    busy_times = BusyTimes(loop.time)
    busy_times.register("trainers", "trainer")
    queue = _build_queue(workers, settings, busy_times)
    buffer = GroupBuffer(
        mode,
        math.ceil(settings.global_batch / settings.group_size),
        settings.rollout_epochs,
        settings.max_staleness,
        stale_data,  # type: ignore[arg-type]
        num_updates,
    )
    stream = GroupStream(buffer, make_group)
    driver = Driver(workers.simulators, queue, player, stream, lock_step=mode == "sync")
    stream.start(driver)
    beside = asyncio.ensure_future(on_start(driver, queue)) if on_start is not None else None
    publisher = PipelinePublisher(workers.trainer, workers.generators, stream.note_published)
    run, began, mark = ModelledRun(num_updates), loop.time(), busy_times.take_snapshot()
    for update in range(1, num_updates + 1):
        if mode in ("sync", "rollout_async"):
            await publisher.finish()
        taken = await stream.take_batch()
        steps = [step for group in taken.groups for t in group.trajectories for step in t.steps]
        behind = [update - 1 - step.policy_version.first for step in steps]
        run.staleness += behind
        await publisher.await_version(max((step.policy_version.last for step in steps), default=0))
        with busy_times.track("trainers", "trainer"):
            await workers.trainer.update(len(steps), sum(count > 0 for count in behind))
        run.num_env_steps += len(steps)
        if update % settings.sync_interval == 0:
            buffer.awaited_version = update
            await publisher.publish(update)
        if settings.weight_sync == "blocking":
            await publisher.finish()
        run.marks.append((loop.time() - began, run.num_env_steps))
    run.sync_s, run.num_syncs = publisher.wait_s, publisher.num_published
    await publisher.finish()
    run.elapsed, run.busy = loop.time() - began, mark.compute_shares(busy_times.take_snapshot())
    run.num_dropped = stream.counts.num_dropped
    run.mean_batch = queue.counts.num_requests / max(queue.counts.num_batches, 1)
    if beside is not None:
        beside.cancel()
    await stream.close()
    queue.close()
    return run
