"""Modelled devices: simulators, generators and a trainer with invented latencies, in virtual time.

Driver, request queue, group stream and staleness rule are the real ones. Only the devices are models, and
the clock of the event loop jumps to the next event. So a run of hours takes seconds, repeats exactly, and
shows the effect of scheduling alone.

How long they take says `modelled_hardware.py`. New weights go the way that real ones go
(`pipeline.PipelinePublisher`): a copy, for which the trainer waits; marks and transfer; then each generator
checks them beside its work, and swaps them in between two calls. Calls that are under way where several join
each other take longer by the time of the swap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from stepwell.core import (
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Status,
    Step,
    Task,
    TokenAction,
    TokenState,
    Trajectory,
    VersionSpan,
)
from stepwell.envs.turns import Turn
from stepwell.rollout.episode import Episode
from stepwell.rollout.jobs import Job
from stepwell.workers.contracts import WorkerHealth
from stepwell.workers.modelled_hardware import Latency
from stepwell.workers.modelled_hardware import ModelledHardware as ModelledHardware
from stepwell.workers.pipeline import ModelledRun as ModelledRun
from stepwell.workers.pipeline import PipelineWorkers, StartHook, run_pipeline
from stepwell.workers.shared_devices import SharedDevices
from stepwell.workers.staleness import Mode
from stepwell.workers.virtual_time import run_virtually as run_virtually

_STATE = TokenState(np.zeros(1, dtype=np.int32))
_ACTION = TokenAction(np.zeros(1, dtype=np.int32))
_LOGPROBS = np.zeros(1, dtype=np.float32)


# --- devices ------------------------------------------------------------------------------------


class _ModelledWorker:
    """The common part of modelled workers: they never die and use no memory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read_health(self) -> WorkerHealth:
        return WorkerHealth(self.name, None, 0.0, 0, is_alive=True, silent_s=0.0)

    async def close(self) -> None:
        """There is nothing to free."""


class ModelledSimulator(_ModelledWorker):
    """One process that hosts batches of environments."""

    def __init__(self, model: ModelledHardware, number: int, devices: SharedDevices | None = None) -> None:
        super().__init__(f"simulator {number}")
        self.num_batches, self.batch_size = model.env_batches, model.batch_size
        self._model, self._number, self._devices = model, number, devices or SharedDevices()
        self._latency = Latency(model.spreads[0], [model.seed, 1, number])
        self._loads = model.find_loads("simulator", number) if devices is not None else {}
        self._turn: asyncio.Lock | nullcontext[None] = asyncio.Lock() if model.takes_turns else nullcontext()
        self._left: dict[tuple[int, int], int] = {}

    async def reset(
        self, batch: int, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> list[Turn]:
        for place, task in zip(places, tasks, strict=True):
            self._left[batch, place] = int(task.content["turns"])  # type: ignore[arg-type]
        if (seconds := self._model.time_reset(len(places))) > 0:
            await self._work(seconds, len(places))
        return [Turn() for _ in places]

    async def step(self, batch: int, places: Sequence[int], actions: Sequence[Any]) -> list[Turn]:
        await self._work(None, len(places))
        turns = []
        for place in places:
            self._left[batch, place] -= 1
            turns.append(Turn(terminated=self._left[batch, place] == 0))
        return turns

    async def _work(self, seconds: float | None, count: int) -> None:
        """A reset of known time, or a step; messages travel before and after, and the driver has its part."""
        if (driver_s := self._model.time_driver(count)) > 0:
            await self._devices.work(driver_s, "driver", self._model.find_loads("driver", 0))
        message_s = self._model.time_message("simulator", self._number, count)
        await pause_for(message_s)
        async with self._turn:
            needed = self._model.time_step(count, self._latency) if seconds is None else seconds
            await self._devices.work(needed, "simulator", self._loads)
        await pause_for(message_s)


class ModelledGenerator(_ModelledWorker):
    """Answers calls, in a time by their size; one at a time, or so many that join each other."""

    def __init__(self, model: ModelledHardware, number: int, devices: SharedDevices | None = None) -> None:
        super().__init__(f"generator {number}")
        self._model, self._number, self._devices = model, number, devices or SharedDevices()
        self._latency = Latency(model.spreads[1], [model.seed, 2, number])
        self._loads = model.find_loads("generator", number) if devices is not None else {}
        is_single = model.max_inflight == 1
        self._turn: asyncio.Lock | nullcontext[None] = asyncio.Lock() if is_single else nullcontext()
        self._num_inflight = 0
        self._swap_lock = asyncio.Lock()
        self.paused_s = 0.0  # in which it could not sample
        self.version = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        first, message_s = self.version, self._model.time_message("generator", self._number, len(requests))
        await pause_for(message_s)
        async with self._turn:
            await self._await_swap()
            self._num_inflight += len(requests)
            seconds, paused_s = self._model.time_sample(self._num_inflight, self._latency), self.paused_s
            await self._devices.work(seconds, "generator", self._loads)
            while self._swap_lock.locked() or self.paused_s > paused_s:  # it was paused meanwhile
                await self._await_swap()
                missed_s, paused_s = self.paused_s - paused_s, self.paused_s
                await pause_for(missed_s)
            self._num_inflight -= len(requests)
        await pause_for(message_s)
        span = VersionSpan(min(first, self.version), self.version)
        return [Sampled(_ACTION, _LOGPROBS, Sampling(), span)] * len(requests)

    async def load_weights(self, version: int, weights: Mapping[str, Any]) -> str:
        self.version = version
        return str(version)

    async def take_weights(self, version: int) -> None:
        """Check new weights beside the work, then swap them in between two calls."""
        seconds = self._model.time_weights()
        if seconds.load > 0:
            await self._devices.work(seconds.load, "weights", self._model.find_loads("checks", self._number))
        if seconds.swap > 0:
            async with self._turn, self._swap_lock:
                await pause_for(seconds.swap)
                self.paused_s += seconds.swap
        self.version = version

    async def _await_swap(self) -> None:
        if self._swap_lock.locked():
            async with self._swap_lock:
                pass

    async def forget(self) -> None:
        """Do nothing: there is no cache."""


async def pause_for(seconds: float) -> None:
    """Let time pass, if there is any to pass."""
    if seconds > 0:
        await asyncio.sleep(seconds)


@lru_cache(maxsize=64)
def _make_step(versions: VersionSpan) -> Step:
    """One step for all turns of these versions: nothing is written into it, and checking each takes long."""
    return Sampled(_ACTION, _LOGPROBS, Sampling(), versions).step(_STATE)


class ModelledPlayer:
    """Records episodes without content."""

    needs_state = False

    def begin_episode(self, place: int, job: Job, turn: Turn) -> Episode:
        return Episode(place, job, turn.observation)

    def make_request(self, episode: Episode, params: SamplingParams) -> Request:
        return Request(_STATE, params, id="")

    def record_summary(self, episode: Episode, request: Request, sampled: Sampled) -> bool:
        """Never asks for a summary."""
        return False

    def read_reply(self, sampled: Sampled) -> _Nothing:
        return _NOTHING

    def record_step(
        self, episode: Episode, request: Request, sampled: Sampled, read: Any, turn: Turn
    ) -> None:
        episode.steps.append(_make_step(sampled.policy_version))
        episode.num_actions += 1
        if turn.terminated:
            episode.status = Status.SUCCESS

    def build_trajectory(self, episode: Episode, wall_s: float) -> Trajectory:
        assert episode.status is not None
        job = episode.job
        return Trajectory(job.task, episode.steps, episode.status, job.group, error=episode.error)


@dataclass(frozen=True, slots=True)
class _Nothing:
    actions: tuple[()] = ()


_NOTHING = _Nothing()


# --- a run --------------------------------------------------------------------------------------


def run_modelled(
    model: ModelledHardware,
    mode: Mode,
    num_updates: int,
    *,
    stale_data: str = "drop",
    on_start: StartHook | None = None,
) -> ModelledRun:
    """Play and train for this many updates, from the first reset to the end of the last update."""
    return run_virtually(lambda: _run_updates(model, mode, num_updates, stale_data, on_start))


async def _run_updates(
    model: ModelledHardware, mode: Mode, num_updates: int, stale_data: str, on_start: StartHook | None
) -> ModelledRun:
    devices = model.build_devices()
    workers = PipelineWorkers(
        [ModelledSimulator(model, i, devices) for i in range(model.num_simulators)],
        [ModelledGenerator(model, i, devices) for i in range(model.num_generators)],
        ModelledTrainer(model, devices),
    )
    return await run_pipeline(
        workers,
        model,
        mode,
        num_updates,
        player=ModelledPlayer(),
        make_group=lambda number: _make_jobs(model, number),
        stale_data=stale_data,
        on_start=on_start,
    )


class ModelledTrainer:
    """Ranks that learn a share of each piece of an update, and exchange gradients after it."""

    def __init__(self, model: ModelledHardware, devices: SharedDevices) -> None:
        self._model, self._devices = model, devices
        self._latency = Latency(model.spreads[2], [model.seed, 3])
        self._loads = [model.find_loads("trainer", rank) for rank in range(model.num_ranks)]

    async def update(self, num_steps: int, num_stale: int) -> None:
        """Learn from this many steps, of which some are versions behind."""
        for seconds in self._model.time_update(num_steps, num_stale, self._latency):
            if len(self._loads) == 1:
                await self._devices.work(seconds, "trainer", self._loads[0])
            else:
                await asyncio.gather(*(self._devices.work(seconds, "trainer", row) for row in self._loads))
            await pause_for(self._model.time_exchange())

    async def copy_weights(self) -> None:
        """Copy the weights; nothing is learnt meanwhile."""
        await pause_for(self._model.time_weights().copy)

    async def send_weights(self, version: int, generators: Sequence[Any]) -> None:
        """Mark the copy and send it, until every generator has swapped it in."""
        seconds = self._model.time_weights()
        if seconds.mark > 0:
            await self._devices.work(seconds.mark, "weights", self._model.find_loads("marks", 0))
        await pause_for(seconds.transfer)
        await asyncio.gather(*(generator.take_weights(version) for generator in generators))


def _make_jobs(model: ModelledHardware, number: int) -> list[Job]:
    turns = model.draw_turns(number)
    return [
        Job(Task("modelled", {"turns": t}), f"g{number}", number * len(turns) + i)
        for i, t in enumerate(turns)
    ]


def compute_throughput_bound(model: ModelledHardware, num_updates: int) -> tuple[float, dict[str, float]]:
    """The throughput that no schedule can exceed: that of the slowest kind of worker, each timed alone.

    Alone means that the other two take no time and staleness has no limit. The generator is timed with
    batches of all environments, its fastest case.
    """
    free = replace(model, max_staleness=10**6, turns=(model.turns[0], model.turns[1]))
    parts = {
        "simulators": replace(free, generator=0.0, trainer=0.0),
        "generators": replace(free, simulator=0.0, trainer=0.0),
        "trainers": replace(free, simulator=0.0, generator=0.0),
    }
    alone = {
        group: run_modelled(part, "sync" if group == "generators" else "stream", num_updates).throughput
        for group, part in parts.items()
    }
    return min(alone.values()), alone
