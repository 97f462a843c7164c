"""Modelled devices: simulators, generators and a trainer with invented latencies, in virtual time.

Driver, request queue, group stream and staleness rule are the real ones. Only the devices are models, and
the clock of the event loop jumps to the next event. So a run of hours takes seconds, repeats exactly, and
shows the effect of scheduling alone.

Latencies: `simulator`, `generator` and `trainer` are the mean times in which all workers of that kind
together handle one turn of all `num_envs` environments. Draws are log-normal with that mean.
* A simulator steps its environments one after the other (one process, one core): one draw per environment.
* A generator answers a batch in one call: one draw per call. The share `generator_fixed` does not depend on
  the size of the batch; the rest grows with it.
* The trainer learns in microbatches of `num_envs` steps, one draw each.
Every kind of worker has its own hardware. Resets and the transfer of weights take no time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from stepwell.core import (
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Status,
    Task,
    TokenAction,
    TokenState,
    Trajectory,
    VersionSpan,
)
from stepwell.envs.turns import Turn
from stepwell.rollout.episode import Episode
from stepwell.rollout.jobs import Job
from stepwell.workers.busy_times import BusyTimes
from stepwell.workers.contracts import WorkerHealth
from stepwell.workers.driver import Driver
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import find_shard_rule
from stepwell.workers.staleness import GroupBuffer, Mode
from stepwell.workers.stream import GroupStream

T = TypeVar("T")
_STATE = TokenState(np.zeros(1, dtype=np.int32))
_ACTION = TokenAction(np.zeros(1, dtype=np.int32))
_LOGPROBS = np.zeros(1, dtype=np.float32)


# --- virtual time --------------------------------------------------------------------------------


class _JumpingSelector(selectors.DefaultSelector):
    """Lets the clock jump instead of waiting."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "deadlock: every task waits, and no timer is set"
            self.jump(timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to do."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        super().__init__(selector)
        self._now_s = 0.0
        selector.jump = self._jump_clock

    def _jump_clock(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.0)

    def time(self) -> float:
        return self._now_s


def run_virtually(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


# --- devices ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelledHardware:
    """Devices and settings of a modelled run. The defaults are those of the benchmark."""

    simulator: float = 22.0
    generator: float = 9.0
    trainer: float = 15.0
    sigma: float = 0.5
    num_envs: int = 32
    num_simulators: int = 4
    env_batches: int = 4
    num_generators: int = 1
    generator_fixed: float = 0.25
    turns: tuple[int, int] = (10, 10)  # minimum and maximum of an episode, drawn uniformly
    global_batch: int = 32
    rollout_epochs: int = 1
    max_staleness: int = 2
    sync_interval: int = 1
    max_batch: int = 32
    max_wait: float = 0.0
    shard: str = "none"
    seed: int = 0

    @property
    def batch_size(self) -> int:
        """Environments of one batch."""
        return max(1, self.num_envs // (self.num_simulators * self.env_batches))


class Latency:
    """Draws of log-normal times with mean 1."""

    def __init__(self, sigma: float, seed: Sequence[int]) -> None:
        self._sigma, self._rng = sigma, np.random.default_rng(seed)

    def draw_sum(self, count: int = 1) -> float:
        """The sum of `count` draws."""
        if self._sigma == 0:
            return float(count)
        return float(np.exp(self._sigma * self._rng.standard_normal(count) - self._sigma**2 / 2).sum())


class _ModelledWorker:
    """The common part of modelled workers: they never die and use no memory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read_health(self) -> WorkerHealth:
        return WorkerHealth(self.name, None, 0.0, 0, is_alive=True, silent_s=0.0)

    async def close(self) -> None:
        """There is nothing to free."""


class ModelledSimulator(_ModelledWorker):
    """One process that steps its environments one after the other, one call at a time."""

    def __init__(self, model: ModelledHardware, number: int) -> None:
        super().__init__(f"simulator {number}")
        self.num_batches, self.batch_size = model.env_batches, model.batch_size
        self._each = model.simulator * model.num_simulators / model.num_envs
        self._latency = Latency(model.sigma, [model.seed, 1, number])
        self._turn = asyncio.Lock()
        self._left: dict[tuple[int, int], int] = {}

    async def reset(
        self, batch: int, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> list[Turn]:
        for place, task in zip(places, tasks, strict=True):
            self._left[batch, place] = int(task.content["turns"])  # type: ignore[arg-type]
        return [Turn() for _ in places]

    async def step(self, batch: int, places: Sequence[int], actions: Sequence[Any]) -> list[Turn]:
        async with self._turn:
            await asyncio.sleep(self._each * self._latency.draw_sum(len(places)))
        turns = []
        for place in places:
            self._left[batch, place] -= 1
            turns.append(Turn(terminated=self._left[batch, place] == 0))
        return turns


class ModelledGenerator(_ModelledWorker):
    """Answers one call at a time, in a fixed time plus a time per request."""

    def __init__(self, model: ModelledHardware, number: int) -> None:
        super().__init__(f"generator {number}")
        whole = model.generator * model.num_generators
        self._fixed = whole * model.generator_fixed / model.num_generators
        self._each = whole * (1 - model.generator_fixed) / model.num_envs
        self._latency = Latency(model.sigma, [model.seed, 2, number])
        self._turn = asyncio.Lock()
        self.version = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        first = self.version
        async with self._turn:
            await asyncio.sleep((self._fixed + self._each * len(requests)) * self._latency.draw_sum())
        span = VersionSpan(min(first, self.version), self.version)
        return [Sampled(_ACTION, _LOGPROBS, Sampling(), span) for _ in requests]

    async def load_weights(self, version: int, weights: Mapping[str, Any]) -> str:
        self.version = version
        return str(version)

    async def forget(self) -> None:
        """There is no cache."""


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
        episode.steps.append(sampled.step(request.state))
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

    @property
    def throughput(self) -> float:
        return self.num_env_steps / self.elapsed


def run_modelled(
    model: ModelledHardware, mode: Mode, num_updates: int, *, stale_data: str = "drop"
) -> ModelledRun:
    """Play and train for so many updates, from the first reset to the end of the last update."""
    return run_virtually(lambda: _run_updates(model, mode, num_updates, stale_data))


async def _run_updates(model: ModelledHardware, mode: Mode, num_updates: int, stale_data: str) -> ModelledRun:
    loop = asyncio.get_running_loop()
    busy_times = BusyTimes(loop.time)
    busy_times.register("trainers", "trainer")
    generators = [ModelledGenerator(model, i) for i in range(model.num_generators)]
    queue = RequestQueue(
        generators,
        max_batch=model.max_batch,
        max_wait_ms=1000.0 * model.max_wait,
        shard=find_shard_rule(model.shard),
        busy_times=busy_times,
    )
    buffer = GroupBuffer(
        mode,
        model.global_batch,
        model.rollout_epochs,
        model.max_staleness,
        stale_data,  # type: ignore[arg-type]
        num_updates,
    )
    stream = GroupStream(buffer, lambda number: _make_jobs(model, number))
    simulators = [ModelledSimulator(model, i) for i in range(model.num_simulators)]
    stream.start(Driver(simulators, queue, ModelledPlayer(), stream, lock_step=mode == "sync"))
    run, began, mark = ModelledRun(num_updates), loop.time(), busy_times.take_snapshot()
    latency = Latency(model.sigma, [model.seed, 3])
    for update in range(1, num_updates + 1):
        taken = await stream.take_batch()
        steps = [step for group in taken.groups for t in group.trajectories for step in t.steps]
        run.staleness += [update - 1 - step.policy_version.first for step in steps]
        with busy_times.track("trainers", "trainer"):
            for _ in range(max(1, round(len(steps) / model.num_envs))):
                await asyncio.sleep(model.trainer * latency.draw_sum())
        run.num_env_steps += len(steps)
        if update % model.sync_interval == 0:
            for generator in generators:
                await generator.load_weights(update, {})
            stream.note_published(update)
    run.elapsed, run.busy = loop.time() - began, mark.compute_shares(busy_times.take_snapshot())
    run.num_dropped = stream.counts.num_dropped
    run.mean_batch = queue.counts.num_requests / max(queue.counts.num_batches, 1)
    await stream.close()
    queue.close()
    return run


def _make_jobs(model: ModelledHardware, number: int) -> list[Job]:
    low, high = model.turns
    turns = int(np.random.default_rng([model.seed, 4, number]).integers(low, high + 1))
    return [Job(Task("modelled", {"turns": turns}), f"g{number}", number)]


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
