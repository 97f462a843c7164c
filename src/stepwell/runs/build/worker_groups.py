"""The resource groups of a run, built from its settings and at work: simulators, generators, the trainer.

    main thread     SyncLoop ─ StreamedSource ─ batch, publish, run ─┐
    groups thread   Stream ─ Driver ─ RequestQueue ─ Simulators, Generators     (one event loop)

`Groups` stands where the engine and the rollout of a run in one process stand: an evaluation calls `run`,
the loop calls `publish`. Simulators and generators are processes (`workers`), or threads of this one
(`groups.processes = false`). A generator builds its own copy of the policy from the run's settings
(`engine_of`), and gets the trainer's weights before it is asked for anything.

Invariants
* Weights are handed to all generators, and each must report the fingerprint of what was published; what is
  under way goes on meanwhile. Every `sync_interval` updates, and before an evaluation.
* `close` ends everything that was started, whatever state it is in.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, SamplingParams, WeightsError, WorkerError
from stepwell.engines import fingerprint_of
from stepwell.rollout.jobs import Job, RolloutResult
from stepwell.runs.build.components import Parts
from stepwell.workers.busy_times import BusySnapshot, BusyTimes
from stepwell.workers.contracts import Generator, Simulator
from stepwell.workers.driver import Driver
from stepwell.workers.in_process import LocalGenerator, LocalSimulator
from stepwell.workers.placement import DevicePlacement, list_devices, list_trainer_devices, resolve_placement
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import find_shard_rule, load_user_function
from stepwell.workers.staleness import check_staleness
from stepwell.workers.stream import GroupStream

T = TypeVar("T")
FACTORY = "stepwell.runs.build.worker_groups:engine_of"
TRAINER = "trainer"
_LANGUAGE_INFLIGHT = 4
_PUBLISH_TRIES = 3


class _Startable(Protocol):
    async def start(self) -> None: ...


def check_groups(config: RunConfig) -> DevicePlacement:
    """Refuse what an asynchronous run cannot do; says who is where."""
    groups = config.groups
    check_staleness(groups)
    if config.own_agent.function is not None:
        raise ConfigError("groups.mode: an agent of your own plays through the gateway; set it to 'off'")
    if config.offline.pool is not None:
        raise ConfigError("groups.mode: an offline run plays nothing; set it to 'off'")
    find_shard_rule(groups.generators.shard)
    return resolve_placement(groups, config.policy.device, list_devices())


def told(config: RunConfig, recipe: Recipe) -> Iterator[str]:
    """The groups of a run for its plan: who is where, and how far they overlap."""
    placement, groups, train = check_groups(config), config.groups, config.train
    sims = groups.simulators
    num_envs = sims.num_workers * sims.env_batches * sims.batch_size
    shape = f"{sims.num_workers} simulators x {sims.env_batches} batches x {sims.batch_size}"
    yield (
        f"{groups.mode}: {num_envs} environments = {shape}; inference at {groups.generators.max_batch} "
        f"samples or after {groups.generators.max_wait_ms:g} ms"
    )
    yield f"{placement.kind}: {'; '.join(placement.describe_devices())}"
    size = groups.global_batch or train.tasks_per_update * train.group_size
    unit = train.group_size if recipe.needs_groups else 1
    yield (
        f"an update learns from {math.ceil(size / unit) * unit} trajectories, at most {groups.max_staleness} "
        f"versions behind (older: {groups.stale_data}); weights are handed out every {groups.sync_interval}"
    )


def placed(config: RunConfig) -> RunConfig:
    """The settings with the policy on the device of the trainer's first rank, and every rank named."""
    groups, own = config.groups, config.policy.device
    if groups.mode == "off":
        devices = list_trainer_devices(groups, own, list_devices())
    else:
        devices = check_groups(config).trainers
    if not groups.trainers.devices and len(devices) == 1:
        return config
    changes = {
        "trainers": groups.trainers.model_copy(update={"devices": devices}),
        "generators": groups.generators.model_copy(update={"devices": groups.generators.devices or (own,)}),
    }
    policy = config.policy.model_copy(update={"device": devices[0]})
    return config.model_copy(update={"policy": policy, "groups": groups.model_copy(update=changes)})


def start_groups(config: RunConfig, parts: Parts) -> Groups:
    """Start the groups of a run in the places of its engine and its rollout."""
    groups = Groups.start(config, parts)
    parts.trainer.devices = groups.placement.trainers
    parts.engine = parts.rollout = groups  # type: ignore[assignment]
    return groups


def engine_of(settings: Mapping[str, Any]) -> Any:
    """The engine of a run with these settings: what a generator process builds."""
    folder = settings.get("folder")  # of the run: its pool holds the pictures that prompts name
    return Parts(RunConfig.model_validate(settings["config"]), folder and Path(folder)).engine


def generator_config(config: RunConfig, device: str) -> RunConfig:
    """The settings from which a generator builds its engine: its own device, and as few worlds as can be."""
    engine = config.engine
    size = max(engine.max_batch_size, config.groups.generators.max_batch)
    changes: dict[str, Any] = {
        "policy": config.policy.model_copy(update={"device": device, "reference": False}),
        "engine": engine.model_copy(
            update={
                "max_batch_size": size,
                "max_queue": max(engine.max_queue, size),
                "num_slots": engine.num_slots and max(engine.num_slots, size),
            }
        ),
        "train": config.train.model_copy(update={"tasks_per_update": 1, "group_size": 1, "minibatches": 1}),
        "eval": config.eval.model_copy(update={"num_tasks": 1, "samples_per_task": 1}),
    }
    return config.model_copy(update=changes)


@dataclass(eq=False)
class Groups:
    """Simulators and generators at work in a thread, and what the main thread asks of them."""

    config: RunConfig
    parts: Parts
    placement: DevicePlacement
    stream: GroupStream = field(default_factory=GroupStream)
    spans: BusyTimes = field(default_factory=BusyTimes)
    on_figures: Callable[[dict[str, float]], None] | None = None
    version: int = -1  # what the generators have

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stepwell-groups", daemon=True)
        self._thread.start()
        self._simulators: list[Simulator] = []
        self._generators: list[Generator] = []
        self._is_closed = self._is_learning = False
        self._ticking: asyncio.Task[None] | None = None
        self._newest: tuple[int, Callable[[], Mapping[str, Any]]] | None = None
        self.spans.register("trainers", TRAINER)

    @classmethod
    def start(cls, config: RunConfig, parts: Parts) -> Groups:
        """Check the settings, start every worker and wait until it is ready."""
        groups = cls(config, parts, check_groups(config))
        try:
            groups.call(groups._start())
        except BaseException:
            groups.close()
            raise
        return groups

    async def _start(self) -> None:
        self._simulators = self._make_simulators()
        self._generators = self._make_generators()
        workers = [*self._simulators, *self._generators]
        await asyncio.gather(*(worker.start() for worker in workers if hasattr(worker, "start")))
        groups, settings = self.config.groups, self.config.groups.generators
        priority = settings.priority
        inflight = settings.max_inflight or (1 if self.parts.is_robot else _LANGUAGE_INFLIGHT)
        self.queue = RequestQueue(
            self._generators,
            max_batch=settings.max_batch,
            max_wait_ms=settings.max_wait_ms,
            shard=find_shard_rule(settings.shard),
            priority=load_user_function(priority, "groups.generators.priority") if priority else None,
            max_inflight=inflight,
            busy_times=self.spans,
        )
        lock_step = groups.mode == "sync"
        self.driver = Driver(
            self._simulators, self.queue, self.parts.player, self.stream, lock_step=lock_step
        )
        self.stream.start(self.driver)
        self._ticking = asyncio.create_task(self._tick())

    def _make_simulators(self) -> list[Simulator]:
        settings, env = self.config.groups.simulators, self.config.env
        shape = (env.name, env.options, settings.env_batches, settings.batch_size)
        with_state = self.parts.player.needs_state
        if not self.config.groups.processes:
            return [
                LocalSimulator(f"simulator {i}", *shape, with_state=with_state)
                for i in range(settings.num_workers)
            ]
        from stepwell.workers import ProcessSimulator

        return [
            ProcessSimulator(
                f"simulator {i}",
                *shape,
                with_state=with_state,
                environment=_renders_on(device),
                **self._watched,
            )
            for i, device in enumerate(self.placement.simulators)
        ]

    def _make_generators(self) -> list[Generator]:
        configs = [generator_config(self.config, device) for device in self.placement.generators]
        if not self.config.groups.processes:
            return [
                LocalGenerator(f"generator {i}", Parts(config, self.parts.folder).engine)
                for i, config in enumerate(configs)
            ]
        from stepwell.workers import ProcessGenerator

        threads, folder = self.config.groups.generators.num_threads, self.parts.folder
        return [
            ProcessGenerator(
                f"generator {i}",
                FACTORY,
                {"config": config.model_dump(mode="json"), "folder": folder and str(folder.absolute())},
                num_threads=threads,
                **self._watched,
            )
            for i, config in enumerate(configs)
        ]

    @property
    def _watched(self) -> dict[str, Any]:
        groups = self.config.groups
        return {
            "heartbeat_s": groups.heartbeat_s,
            "hang_s": groups.hang_s,
            "max_restarts": groups.max_restarts,
        }

    # --- as an engine and a rollout -------------------------------------------------------

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of the generators' weights."""
        return getattr(torch, self.config.policy.dtype)  # type: ignore[no-any-return]

    def run(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> RolloutResult:
        """Play every job, with the newest weights; training episodes go on beside it."""
        if self._newest is not None and self._newest[0] > self.version:
            self._hand_out(*self._newest)
        return self.call(self.stream.play_jobs(jobs, params, retries=retries, timeout_s=timeout_s))

    def publish(self, version: int, weights: Callable[[], Mapping[str, Any]]) -> str | None:
        """Hand weights to the generators where they are due; gives their fingerprint, or None."""
        self.learning(False)
        self._newest = version, weights
        if version % self.config.groups.sync_interval and self.version >= 0:
            return None
        return self._hand_out(version, weights)

    def _hand_out(self, version: int, weights: Callable[[], Mapping[str, Any]]) -> str:
        tensors = weights()
        published = fingerprint_of(tensors, self.dtype)
        for found in self.call(self._load(version, tensors)):
            if found != published:
                raise WeightsError(
                    f"version {version} was published as {published}, a generator reports {found}; its "
                    "weights are not the trainer's"
                )
        self.version = version
        self._loop.call_soon_threadsafe(self.stream.note_published, version)
        return published

    async def _load(self, version: int, weights: Mapping[str, Any]) -> list[str]:
        async def load(generator: Generator) -> str:
            for attempt in range(_PUBLISH_TRIES):
                try:
                    return await generator.load_weights(version, weights)
                except WorkerError:  # it died under it; the next one is being started
                    if attempt == _PUBLISH_TRIES - 1:
                        raise
            raise AssertionError

        return list(await asyncio.gather(*(load(generator) for generator in self._generators)))

    def forget(self) -> None:
        """Drop the generators' caches."""
        self.call(self._each_forgets())

    async def _each_forgets(self) -> None:
        await asyncio.gather(*(generator.forget() for generator in self._generators), return_exceptions=True)

    def learning(self, is_learning: bool) -> None:
        """The trainer begins or ends an update: for who worked when."""
        if is_learning != self._is_learning:
            (self.spans.begin if is_learning else self.spans.end)("trainers", TRAINER)
            self._is_learning = is_learning

    # --- what a person sees ---------------------------------------------------------------

    async def _tick(self) -> None:
        """Every second: what the groups are doing, for a live view."""
        mark = self.spans.take_snapshot()
        while True:
            await asyncio.sleep(1.0)
            before, mark = mark, self.spans.take_snapshot()
            if self.on_figures is not None:
                self.on_figures(self.figures(before, mark))

    def figures(self, before: BusySnapshot, after: BusySnapshot) -> dict[str, float]:
        """Utilisation between two marks; queue, stock and memory now."""
        found = {f"{group}/busy": share for group, share in before.compute_shares(after).items()}
        healths = [("simulators", w.read_health()) for w in self._simulators]
        healths += [("generators", w.read_health()) for w in self._generators]
        for group, health in healths:
            for name, value in (("memory_mb", health.memory_mb), ("restarts", float(health.num_restarts))):
                found[f"{group}/{name}"] = found.get(f"{group}/{name}", 0.0) + value
        buffer = self.stream.buffer
        ranks: list[int | str] = ["self", *self.parts.trainer.rank_pids]
        return found | {
            "simulators/episodes": float(self.driver.num_live),
            "generators/queue": float(self.queue.num_waiting),
            "trainers/queue": 0.0 if buffer is None else float(len(buffer.ready)),
            "trainers/memory_mb": sum(map(memory_mb, ranks)),
        }

    # --- the thread -----------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, T], is_over: Callable[[], bool] | None = None) -> T:
        """Run something on the groups' event loop and wait for it.

        Where `is_over` says so meanwhile, the work is called off and `CancelledError` raised.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(timeout=0.2)
            except FutureTimeout:
                if future.done():  # just now, or the work itself timed out
                    return future.result()
                if is_over is not None and is_over():
                    future.cancel()
            except BaseException:
                future.cancel()
                raise

    def drain(self) -> int:
        """Begin nothing more and store what is finished; gives the number of episodes that were not."""
        self.call(self.stream.close())
        return self.driver.counts.num_abandoned

    def close(self) -> None:
        """End driver, workers and thread. What was finished is stored; the rest was not played."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.call(self._close())
        finally:
            if "trainer" in self.parts.__dict__:
                self.parts.trainer.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        try:
            await self.stream.close()
        finally:
            if hasattr(self, "queue"):
                self.queue.close()
            workers = [*self._simulators, *self._generators]
            await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)


def memory_mb(pid: int | str) -> float:
    """Resident memory of a process; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * 4096 / 1e6
    except OSError:
        if pid != "self":
            return 0.0
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _renders_on(device: str) -> dict[str, str]:
    """Where off-screen rendering goes."""
    kind, _, index = device.rpartition("/")[2].partition(":")
    return {"MUJOCO_EGL_DEVICE_ID": index, "EGL_DEVICE_ID": index} if kind == "cuda" and index else {}
