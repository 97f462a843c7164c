"""Measures the profile of a run: its environment, engine and trainer, each timed where the run would use it.

    Rollout with timed environments and a timed engine, at several sizes ─► step, reset, sample, driver
    Trainer.update on what was played, fresh and one version behind      ─► learn
    SnapshotBuffers ─► WeightReceiver ─► the engine, as of a generator    ─► weights

Everything happens in this process, with a throw-away copy of the policy. Nothing of it is kept but the times.

What is not measured: traffic between processes (`TRANSPORT_S` is assumed for every request) and between
machines (the defaults of `NetworkTimes`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.config.profile import (
    GeneratorTimes,
    NetworkTimes,
    PipelineProfile,
    Point,
    SimulatorTimes,
    TrainerTimes,
    WeightTimes,
)
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Split, Trajectory
from stepwell.core.weight_parts import WeightParts
from stepwell.rollout import Job, Rollout
from stepwell.runs.build.components import Components
from stepwell.runs.loop.references import freeze_reference
from stepwell.runs.machine import describe_machine
from stepwell.workers.weight_receiver import WeightReceiver
from stepwell.workers.weight_snapshots import SnapshotBuffers

if TYPE_CHECKING:
    from stepwell.core import Request, Sampled, Task
    from stepwell.envs.batch import EnvBatch
    from stepwell.envs.turns import Turn

TRANSPORT_S = 1.0e-4
"""Assumed cost of one request between processes of one machine, in the driving process."""
_MAX_SPREAD = 2.0


@dataclass(slots=True)
class TimedCall:
    """One call: how many took part, its seconds, and seconds of the processor.

    Time in which this thread was ready and other programs had the cores is taken off (Linux only).
    """

    count: int
    wall_s: float
    cpu_s: float


@dataclass(slots=True)
class TimedCalls:
    """Calls of one kind. `computes`: they never wait for anything but the processor."""

    computes: bool = False
    calls: list[TimedCall] = field(default_factory=list)

    def run(self, count: int, work: Callable[[], Any]) -> Any:
        """The result of the work, which is timed."""
        began, cpu, kept_out = time.perf_counter(), time.process_time(), _read_kept_out_s()
        found = work()
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - began
        wall_s = max(wall_s - (_read_kept_out_s() - kept_out), 1e-9)
        if self.computes:  # its own threads were kept out too
            wall_s = min(wall_s, max(cpu_s, 1e-9))
        self.calls.append(TimedCall(count, wall_s, cpu_s))
        return found

    @property
    def total_s(self) -> float:
        return sum(call.wall_s for call in self.calls)

    @property
    def median_s(self) -> float:
        """Seconds of a usual call."""
        return median(call.wall_s for call in self.calls)

    def compute_each_s(self) -> float:
        """Seconds of one of those that took part."""
        return self.total_s / max(sum(call.count for call in self.calls), 1)

    def compute_cores(self) -> float:
        """Cores that were busy meanwhile; what only waits keeps none busy."""
        return round(sum(call.cpu_s for call in self.calls) / max(self.total_s, 1e-9), 3)

    def compute_spread(self) -> float:
        """Sigma of the log-normal time of one that takes part alone; the sum of many varies less."""
        each = np.array([call.wall_s / call.count for call in self.calls if call.count and call.wall_s > 0])
        if len(each) < 8:
            return 0.0
        low, high = np.quantile(each, [0.16, 0.84])
        usual = float(np.median([call.count for call in self.calls]))
        return round(min(_MAX_SPREAD, math.log(high / low) / 2 * math.sqrt(usual)), 3)

    def list_points(self, sizes: Sequence[int]) -> tuple[Point, ...]:
        """The median time at about each size; times never fall with the size."""
        points: list[Point] = []
        for size in sizes:
            near = [call.wall_s for call in self.calls if 0.75 * size <= call.count <= size]
            if near:
                points.append((float(size), max(float(np.median(near)), points[-1][1] if points else 0.0)))
        return tuple(points)


class _TimedEnvs:
    """An `EnvBatch` whose calls are timed."""

    def __init__(self, batch: EnvBatch, size: int, steps: TimedCalls, resets: TimedCalls) -> None:
        self.envs, self._batch, self._steps, self._resets = batch.envs[:size], batch, steps, resets

    def reset(self, tasks: Sequence[Task], *places: Any, **more: Any) -> list[Turn]:
        turns: list[Turn] = self._resets.run(len(tasks), lambda: self._batch.reset(tasks, *places, **more))
        return turns

    def step(self, indices: Sequence[int], actions: Sequence[Any], **more: Any) -> list[Turn]:
        turns: list[Turn] = self._steps.run(len(indices), lambda: self._batch.step(indices, actions, **more))
        return turns


class _TimedEngine:
    """An engine whose calls are timed."""

    def __init__(self, engine: Any, calls: TimedCalls) -> None:
        self._engine, self._calls = engine, calls

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        found: list[Sampled] = self._calls.run(
            len(requests), lambda: self._engine.generate_blocking(requests)
        )
        return found


@dataclass(eq=False)
class ProfileMeasurement:
    """Times the parts of one run for about `budget_s` seconds."""

    config: RunConfig
    budget_s: float = 20.0
    steps: TimedCalls = field(default_factory=TimedCalls)
    resets: TimedCalls = field(default_factory=TimedCalls)
    samples: TimedCalls = field(default_factory=TimedCalls)
    _played: list[Trajectory] = field(default_factory=list)
    _driver_s: float = 0.0
    _num_turns: int = 0

    def run(self) -> PipelineProfile:
        """The profile."""
        if self.config.own_agent.function is not None:
            raise ConfigError("plan: an agent of your own plays through the gateway and is not forecast yet")
        components = Components(_size_config(self.config))
        try:
            sizes = list_sizes(count_envs(self.config))
            self._play_episodes(components, sizes)
            trainer = self._time_trainer(components)
            weights = self._time_weights(components)
            return self._build_profile(components, sizes, trainer, weights)
        finally:
            components.close()

    @property
    def _on_cores(self) -> bool:
        return self.config.policy.device == "cpu"

    def _play_episodes(self, components: Components, sizes: Sequence[int]) -> None:
        """Episodes at every size, largest first; the first call of each kind is not counted."""
        tasks = components.tasks(Split.TRAIN, min(max(sizes), self.config.train.num_tasks), self.config.seed)
        params = components.sampling_params(self.config.sampling.temperature)
        began, number = time.perf_counter(), 0
        for size in [sizes[0], *reversed(sizes)]:
            is_first = number == 0
            steps, resets, samples = TimedCalls(), TimedCalls(), TimedCalls(self._on_cores)
            envs = _TimedEnvs(components.envs, size, steps, resets)
            engine = _TimedEngine(components.engine, samples)
            jobs = [Job(tasks[(number + i) % len(tasks)], f"p{number}", number + i) for i in range(size)]
            number += size
            components.engine.forget()
            rollout = Rollout(envs, components.backend.player, engine)  # type: ignore[arg-type]
            whole = TimedCalls()
            played = whole.run(size, partial(rollout.run, jobs, params, retries=1))
            if is_first:
                continue
            spent_s = sum(call.cpu_s for calls in (steps, resets, samples) for call in calls.calls)
            self._driver_s += whole.calls[0].cpu_s - spent_s
            self._num_turns += sum(call.count for call in steps.calls)
            for mine, new in ((self.steps, steps), (self.resets, resets), (self.samples, samples)):
                mine.calls += new.calls
            self._played += played.trajectories
            if time.perf_counter() - began > self.budget_s / 2 and size <= max(sizes) // 2:
                break

    def _time_trainer(self, components: Components) -> TrainerTimes:
        """Updates from half of an update's trajectories and from all, fresh; then one version behind."""
        train, workers = self.config.train, self.config.workers
        size = workers.global_batch or train.tasks_per_update * train.group_size
        whole = [self._played[i % len(self._played)] for i in range(size)]
        half = whole[: max(1, len(whole) // 2)]
        freeze_reference(components)
        components.trainer.update(whole)  # compiles and allocates
        points, walls, cpus = [], 0.0, 0.0
        for batch in (half, whole) if len(half) < len(whole) else (whole,):
            calls = self._time_updates(components, batch)
            points.append((float(sum(len(t.steps) for t in batch)), calls.median_s))
            walls, cpus = walls + calls.total_s, cpus + sum(call.cpu_s for call in calls.calls)
        behind = self._time_updates(components, whole, version=1)
        points = [points[0], (points[-1][0], max(points[-1][1], points[0][1]))] if points[1:] else points
        groups = min(train.minibatches, train.tasks_per_update)
        return TrainerTimes(
            times=tuple(points),
            cores=round(cpus / max(walls, 1e-9), 3),
            stale_share=round(max(0.0, behind.median_s / points[-1][1] - 1), 3),
            optimizer_steps=max(1, groups * train.update_epochs),
        )

    def _time_updates(
        self, components: Components, batch: Sequence[Trajectory], version: int | None = None
    ) -> TimedCalls:
        """The same update up to three times, fewer where one is long: single ones differ by a factor of 4."""
        calls = TimedCalls(self._on_cores)
        while len(calls.calls) < 3 and calls.total_s < self.budget_s / 20:
            calls.run(len(batch), partial(_update_weights, components, batch, version))
        return calls

    def _time_weights(self, components: Components) -> WeightTimes:
        """Versions on the way that generators' weights go: the median of three, after a first one."""
        parts = components.policy.weight_parts()
        buffers = SnapshotBuffers(components.runner.dtype, int(self.config.workers.sync_bucket_mb * 1e6))
        receiver = WeightReceiver(components.engine)
        sync = partial(_sync_weights, components.engine, buffers, receiver, computes=self._on_cores)
        sync(2, parts)
        found = [sync(version, _change_parts(parts, version)) for version in (3, 4, 5)]
        times = {name: median(getattr(one, name) for one in found) for name in WeightTimes.model_fields}
        return WeightTimes(**times)

    def _build_profile(
        self, components: Components, sizes: Sequence[int], trainer: TrainerTimes, weights: WeightTimes
    ) -> PipelineProfile:
        waits = components.envs.waits
        each_s = self.steps.compute_each_s()
        step_times = self.steps.list_points(sizes) if waits else ((1.0, each_s),)
        turns = tuple(len(t.steps) for t in self._played if t.steps) or (1,)
        actions = sum(int(t.info.get("num_actions", len(t.steps))) for t in self._played)  # type: ignore[arg-type, misc]
        machine = describe_machine()
        device = components.config.policy.device
        return PipelineProfile(
            name=f"{self.config.env.name}, {self.config.policy.model or 'no model named'}, on {device}",
            machine=f"{machine['processor']}, {machine['cores']} cores, {machine['gpu'] or 'no GPU'}",
            simulator=SimulatorTimes(
                times=step_times,
                spread=self.steps.compute_spread(),
                cores=min(1.0, self.steps.compute_cores()),
                device=0.0,
                reset_s=self.resets.compute_each_s(),
                at_once=waits,
            ),
            generator=GeneratorTimes(
                times=self.samples.list_points(sizes), cores=max(0.05, self.samples.compute_cores())
            ),
            trainer=trainer,
            weights=weights,
            network=NetworkTimes(),
            controller_s=max(self._driver_s, 0.0) / max(self._num_turns, 1) + TRANSPORT_S,
            turns=turns[:256],
            actions_per_turn=actions / sum(turns) if actions else 1.0,
        )


def _sync_weights(
    engine: Any,
    buffers: SnapshotBuffers,
    receiver: WeightReceiver,
    version: int,
    parts: WeightParts,
    *,
    computes: bool,
) -> WeightTimes:
    """Put one version into an engine, and time every part of the way."""
    copy, mark, load = TimedCalls(computes), TimedCalls(computes), TimedCalls(computes)
    snapshot = copy.run(1, lambda: buffers.take_snapshot(version, parts))
    mark.run(1, snapshot.compute_marks)
    adapters = {name: [one.down, one.up, one.scale] for name, one in snapshot.adapters.items()}
    header = {"version": version, "marks": snapshot.marks, "adapters": adapters}
    lacking = load.run(1, lambda: receiver.begin(header))
    if lacking is None:  # an engine that takes whole weights, and samples nothing meanwhile
        load.run(1, lambda: engine.load_weights(version, snapshot.merge_weights()))
        return WeightTimes(
            num_bytes=snapshot.num_bytes, copy_s=copy.total_s, mark_s=mark.total_s, swap_s=load.total_s
        )
    buckets = snapshot.list_buckets(lacking)
    for bucket in buckets:
        load.run(
            1, partial(receiver.add_bucket, {"version": version, "pieces": bucket.pieces}, bucket.arrays)
        )
    swap_s = load.run(1, lambda: receiver.swap({"version": version}))["paused_s"]
    return WeightTimes(
        num_bytes=sum(bucket.num_bytes for bucket in buckets),
        copy_s=copy.total_s,
        mark_s=mark.total_s,
        load_s=max(load.total_s - swap_s, 0.0),
        swap_s=swap_s,
    )


def _change_parts(parts: WeightParts, version: int) -> WeightParts:
    """The same with other values of everything that is trained, as after an update."""
    tensors = {
        name: tensor if name in parts.frozen or not tensor.is_floating_point() else tensor + 1e-3 * version
        for name, tensor in parts.tensors.items()
    }
    return WeightParts(tensors, parts.adapters, parts.frozen)


def measure_profile(config: RunConfig, budget_s: float = 20.0) -> PipelineProfile:
    """Time the parts of a run on this machine."""
    return ProfileMeasurement(config, budget_s).run()


def count_envs(config: RunConfig) -> int:
    """Environments of an asynchronous run with these settings."""
    sims = config.workers.simulators
    return sims.num_workers * sims.env_batches * sims.batch_size


def list_sizes(largest: int) -> list[int]:
    """1, 4, 16, … and the largest.

    >>> list_sizes(40)
    [1, 4, 16, 40]
    """
    sizes = [4**i for i in range(12) if 4**i < largest]
    return [*sizes, largest]


def _size_config(config: RunConfig) -> RunConfig:
    """Settings with an engine and environments for all that may be played at once, and whole updates."""
    num_envs, engine, train = count_envs(config), config.engine, config.train
    size = max(engine.max_batch_size, num_envs)
    changes: dict[str, Any] = {
        "engine": engine.model_copy(
            update={
                "max_batch_size": size,
                "max_queue": max(engine.max_queue, size),
                "num_slots": engine.num_slots and max(engine.num_slots, size),
            }
        ),
        "train": train.model_copy(update={"guard": train.guard.model_copy(update={"max_kl": None})}),
        "eval": config.eval.model_copy(update={"num_tasks": num_envs, "samples_per_task": 1}),
        "workers": config.workers.model_copy(update={"mode": "off"}),
    }
    return config.model_copy(update=changes)


def _read_kept_out_s() -> float:
    """Seconds in which this thread was ready to run and had no core; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _update_weights(components: Components, batch: Sequence[Trajectory], version: int | None) -> None:
    """One update, to the end of its work on the device."""
    components.trainer.update(batch, version=version)
    if components.config.policy.device != "cpu":
        import torch

        torch.cuda.synchronize()
