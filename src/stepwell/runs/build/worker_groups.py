"""The workers of an asynchronous run: simulators and generators, built from its settings.

    main thread     TrainingLoop ─ StreamedSource ─ batch, publish, run ─┐
    workers thread  Stream ─ Driver ─ RequestQueue ─ Simulators, Generators     (one event loop)

`WorkerGroups` is an `EpisodeRunner`: an evaluation calls `run`, the loop calls `publish`. Simulators and
generators are processes here or on other machines, actors of Ray, or threads of this process
(`worker_builder.py`). A generator builds its own copy of the policy from the run's settings, and gets the
trainer's weights before its first request. A user's own agent plays through the gateway (`agent_driver.py`):
then there are generators only.

Invariants
* Weights go to all generators every `sync_interval` updates and before an evaluation, while trainer and
  generators go on (`weight_publisher.py`). Episodes under way go on; new groups wait, but in mode `stream`.
* `close` ends everything that was started, whatever state it is in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from stepwell.config.run import RunConfig
from stepwell.core import SamplingParams, WeightsError, WorkerError
from stepwell.core.process_memory import read_resident_mb
from stepwell.envs.registry import find_env_type
from stepwell.policies.rotary import read_frequencies
from stepwell.rollout.jobs import Job, RolloutResult
from stepwell.runs.build.components import Components
from stepwell.runs.build.runner import WeightSource
from stepwell.runs.build.weight_publisher import WeightPublisher
from stepwell.runs.build.worker_builder import WorkerBuilder
from stepwell.runs.build.worker_plan import check_old_samples, check_workers
from stepwell.workers.busy_times import BusySnapshot, BusyTimes
from stepwell.workers.contracts import Generator, Simulator
from stepwell.workers.driver import Driver
from stepwell.workers.placement import DevicePlacement
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import find_shard_rule, load_user_function
from stepwell.workers.stream import GroupStream
from stepwell.workers.tuning import QueueSettings, Tuner, tune_queue

if TYPE_CHECKING:
    from stepwell.runs.build.agent_driver import AgentDriver

T = TypeVar("T")
TRAINER = "trainer"


@dataclass(eq=False)
class WorkerGroups:
    """Simulators and generators, driven by an event loop in a thread of its own."""

    config: RunConfig
    components: Components
    placement: DevicePlacement
    stream: GroupStream = field(default_factory=GroupStream)
    spans: BusyTimes = field(default_factory=BusyTimes)
    on_figures: Callable[[dict[str, float]], None] | None = None

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stepwell-workers", daemon=True)
        self._thread.start()
        self._simulators: list[Simulator] = []
        self._generators: list[Generator] = []
        self._seen_restarts: dict[str, int] = {}
        self._builder = WorkerBuilder(self.config, self.components, self.placement)
        self._is_closed = self._is_learning = False
        self._reporting: asyncio.Task[None] | None = None
        self._tuning: asyncio.Task[None] | None = None
        self.tuner: Tuner | None = None
        self._newest: tuple[int, WeightSource] | None = None
        self.spans.register("trainers", TRAINER)

    @classmethod
    def start(cls, config: RunConfig, components: Components) -> WorkerGroups:
        """Check the settings, start every worker and wait until it is ready."""
        check_old_samples(config, components.recipe)
        workers = cls(config, components, check_workers(config))
        try:
            workers._builder.open_cluster()  # here: starting a Ray cluster sets signal handlers
            components.rank_launcher = workers._builder.make_rank_launcher()
            workers.call(workers._start_workers())
        except BaseException:
            workers.close()
            raise
        return workers

    async def _start_workers(self) -> None:
        self._simulators = self._builder.make_simulators()
        self._generators = self._builder.make_generators()
        workers = [*self._simulators, *self._generators]
        await asyncio.gather(*(worker.start() for worker in workers if hasattr(worker, "start")))
        settings = self.config.workers.generators
        priority = settings.priority
        inflight = settings.max_inflight or self.components.backend.default_inflight
        self.queue = RequestQueue(
            self._generators,
            max_batch=settings.max_batch,
            max_wait_ms=settings.max_wait_ms,
            shard=find_shard_rule(settings.shard),
            priority=load_user_function(priority, "workers.generators.priority") if priority else None,
            max_inflight=inflight,
            busy_times=self.spans,
        )
        self.publisher = WeightPublisher(
            self._generators,
            self.dtype,
            lambda work: asyncio.run_coroutine_threadsafe(work, self._loop),
            bucket_mb=self.config.workers.sync_bucket_mb,
            on_version=self.stream.note_published,
            watch_task=self.stream.watch_task,
        )
        lock_step = self.config.workers.mode == "sync"
        self.driver = await self._make_driver(lock_step)
        self.stream.start(self.driver)
        self._reporting = asyncio.create_task(self._report_figures())
        if self.config.workers.tune and not lock_step:
            self.tuner = Tuner(
                QueueSettings(settings.max_batch, settings.max_wait_ms, settings.shard),
                self.driver.num_places,
                len(self._generators),
            )
            self._tuning = asyncio.create_task(tune_queue(self.queue, self.driver, self.tuner))
            self.stream.watch_task(self._tuning)

    async def _make_driver(self, lock_step: bool) -> Driver | AgentDriver:
        """Who plays: the simulators, or the user's own agent."""
        if self.config.own_agent.function is None:
            return Driver(
                self._simulators,
                self.queue,
                self.components.backend.player,
                self.stream,
                lock_step=lock_step,
                moves_together=find_env_type(self.config.env.name).is_vector,
            )
        from stepwell.runs.build.agent_driver import AgentDriver  # imports the gateway

        return await asyncio.to_thread(
            AgentDriver.start, self.config, self.components, self.queue, self.stream, self._loop
        )

    # --- playing and weights ---------------------------------------------------------------

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of the generators' weights."""
        return getattr(torch, self.config.policy.dtype)  # type: ignore[no-any-return]

    def run(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> RolloutResult:
        """Play every job with the newest weights, beside the training episodes."""
        if self._newest is not None and self._newest[0] > self.publisher.newest:
            self.publisher.publish(*self._newest)
        self.publisher.finish()
        return self.call(self.stream.play_jobs(jobs, params, retries=retries, timeout_s=timeout_s))

    def publish(self, version: int, policy: WeightSource) -> None:
        """Send weights to the generators if they are due. They take them while the trainer goes on."""
        self.mark_training(False)
        self._newest = version, policy
        if version % self.config.workers.sync_interval == 0 or self.publisher.newest < 0:
            if self.stream.buffer is not None:
                self.stream.buffer.awaited_version = version
            self.publisher.publish(version, policy)
        if self.config.workers.weight_sync == "blocking":
            self.publisher.finish()

    def check_weights(self) -> None:
        """Refuse generators that no longer hold what they have taken, or make other rotary tables.

        One that is not there is not waited for: its successor is checked when it takes the weights.
        """
        if self._newest is not None:
            self.call(self._check_generators(read_frequencies(self._newest[1].model)))

    async def _check_generators(self, frequencies: Mapping[str, torch.Tensor]) -> None:
        async def check_one(generator: Any) -> None:
            if not generator.read_health().is_alive:
                return
            try:
                await generator.check_weights(frequencies)
            except WeightsError as error:
                raise WeightsError(f"{generator.name}: {error}") from error
            except WorkerError:  # a death is notes and mended where workers are watched
                if generator.read_health().is_alive:
                    raise

        await asyncio.gather(*map(check_one, self._generators))

    def await_weights(self) -> None:
        """Wait for published weights before the next batch, unless episodes go on while weights travel."""
        if self.config.workers.mode in ("sync", "rollout_async"):
            self.publisher.finish()

    def forget(self) -> None:
        """Drop the generators' caches."""
        self.call(self._forget_all())

    async def _forget_all(self) -> None:
        await asyncio.gather(*(generator.forget() for generator in self._generators), return_exceptions=True)

    def mark_training(self, is_learning: bool) -> None:
        """The trainer starts or ends an update: for the figures of who is busy."""
        if is_learning != self._is_learning:
            (self.spans.begin if is_learning else self.spans.end)("trainers", TRAINER)
            self._is_learning = is_learning

    # --- figures --------------------------------------------------------------------------

    async def _report_figures(self) -> None:
        """Report every second what the workers are doing, for a live view."""
        mark = self.spans.take_snapshot()
        while True:
            await asyncio.sleep(1.0)
            before, mark = mark, self.spans.take_snapshot()
            if self.on_figures is not None:
                self.on_figures(self.figures(before, mark))

    def figures(self, before: BusySnapshot, after: BusySnapshot) -> dict[str, float]:
        """Utilisation between two marks, and queues and memory now."""
        found = {f"{group}/busy": share for group, share in before.compute_shares(after).items()}
        healths = [("simulators", w.read_health()) for w in self._simulators]
        healths += [("generators", w.read_health()) for w in self._generators]
        for group, health in healths:
            for name, value in (("memory_mb", health.memory_mb), ("restarts", float(health.num_restarts))):
                found[f"{group}/{name}"] = found.get(f"{group}/{name}", 0.0) + value
        buffer = self.stream.buffer
        ranks = [None, *self.components.trainer.rank_pids]  # None: this process
        if self.tuner is not None:
            used = self.tuner.choose_settings()
            found |= {
                "generators/max_batch": float(used.max_batch),
                "generators/max_wait_ms": used.max_wait_ms,
            }
        return found | {
            "simulators/episodes": float(self.driver.num_live),
            "generators/queue": float(self.queue.num_waiting),
            "trainers/queue": 0.0 if buffer is None else float(len(buffer.ready)),
            "trainers/memory_mb": sum(map(read_resident_mb, ranks)),
        }

    def take_restarts(self) -> list[str]:
        """What ended workers that were restarted since the last call, with the ends of their logs."""
        notes = []
        for worker in (*self._simulators, *self._generators):
            health = worker.read_health()
            if health.num_restarts > self._seen_restarts.get(health.name, 0):
                self._seen_restarts[health.name] = health.num_restarts
                why = f": {health.last_end}" if health.last_end else ""
                notes.append(f"restart {health.num_restarts} of worker {health.name}{why}")
        return notes

    # --- the thread -----------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, T], is_over: Callable[[], bool] | None = None) -> T:
        """Run a coroutine on the workers' event loop and wait for it.

        If `is_over` becomes true meanwhile, the work is cancelled and `CancelledError` raised.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=0.2)
            except FutureTimeout:
                if future.done():  # at this moment, or the work itself timed out
                    return future.result()
                if is_over is not None and is_over():
                    future.cancel()
            except BaseException:
                future.cancel()
                raise

    def drain(self) -> int:
        """Start no new episodes and store finished ones; returns the number of unfinished ones."""
        self.publisher.finish()
        self.call(self.stream.close())
        return self.driver.counts.num_abandoned

    def close(self) -> None:
        """End driver, workers and thread. Finished episodes are stored; the rest count as not played."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.call(self._close_workers())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close_workers(self) -> None:
        for task in (self._reporting, self._tuning):
            if task is not None:
                task.cancel()
        try:
            await self.stream.close()
        finally:
            if hasattr(self, "driver") and not isinstance(self.driver, Driver):
                await asyncio.to_thread(self.driver.close)
            if hasattr(self, "queue"):
                self.queue.close()
            workers = [*self._simulators, *self._generators]
            await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)
            await asyncio.to_thread(self._builder.close)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
