"""The episode loop: many episodes in lock step, one engine call per turn.

    jobs ─► reset ─► ┌ request ─► engine.generate ─► read ─► env.step ─► record ┐ ─► trajectories
      │              └───────── every episode that is not over ◄───────────────┘
      └─► the place of one that is over

All running episodes request their next action in one call, in the order of their jobs. With more jobs than
environments, an episode that ends makes room for the next job at once: the engine's batch stays full until no
job is left. Seeds follow from the job's seed and the turn. So a rollout is a pure function of weights, jobs
and settings, and repeats bit for bit.

What ends an episode
* The environment: success, or failure (its own turn limit included).
* The budget: a full context, or `timeout_s`: truncated. A first prompt that does not fit ends an episode
  without a step.
* The system: an environment that raises. The job is tried again up to `retries` times. What still fails is in
  `RolloutResult.failures` and is never trained on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from stepwell.core import Request, Sampled, SamplingParams, Status, Trajectory
from stepwell.envs.batch import EnvBatch
from stepwell.rollout.episode import Episode
from stepwell.rollout.jobs import Job, RolloutResult

if TYPE_CHECKING:
    from stepwell.rollout.player import Player  # robots need nothing of what it imports


class BlockingSampler(Protocol):
    """An engine that answers a whole list at once."""

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order."""


@dataclass(slots=True)
class _Running:
    """An episode under way: the number of its job, and when it began."""

    number: int
    episode: Episode
    started_s: float


class Rollout:
    """Plays jobs in copies of one environment."""

    def __init__(self, envs: EnvBatch, player: Player, sampler: BlockingSampler) -> None:
        self.envs, self.player, self.sampler = envs, player, sampler

    def run(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> RolloutResult:
        """Play every job once, and again if the system failed."""
        rolled = RolloutResult([])
        results: dict[int, Trajectory] = {}
        waiting = list(enumerate(jobs))
        for attempt in range(retries + 1):
            results |= self._play_jobs(waiting, params, timeout_s)
            waiting = [(i, jobs[i]) for i, _ in waiting if results[i].status is Status.INFRA_ERROR]
            if not waiting:
                break
            rolled.num_retries += len(waiting) if attempt < retries else 0
        for i in range(len(jobs)):
            failed = results[i].status is Status.INFRA_ERROR
            (rolled.failures if failed else rolled.trajectories).append(results[i])
        return rolled

    def _play_jobs(
        self, jobs: Sequence[tuple[int, Job]], params: SamplingParams, timeout_s: float | None
    ) -> dict[int, Trajectory]:
        """Play every job once; by its number, the trajectory."""
        waiting, played = deque(jobs), dict[int, Trajectory]()
        free: list[int] = list(range(len(self.envs.envs)))
        running: list[_Running] = []
        while waiting or running:
            starting = [(place, *waiting.popleft()) for place in free[: len(waiting)]]
            running += self._begin_episodes(starting)
            if timeout_s is not None:
                _truncate_late(running, timeout_s)
            live = [one.episode for one in running if one.episode.status is None]
            if live:
                self._play_turn(live, params)
            now = time.perf_counter()
            over = [one for one in running if one.episode.status is not None]
            for one in over:
                played[one.number] = self.player.build_trajectory(one.episode, now - one.started_s)
            running = [one for one in running if one.episode.status is None]
            taken = {one.episode.place for one in running}
            free = [place for place in range(len(self.envs.envs)) if place not in taken]
        return played

    def _begin_episodes(self, starting: Sequence[tuple[int, int, Job]]) -> list[_Running]:
        """Start jobs, each at a place of its own."""
        if not starting:
            return []
        now = time.perf_counter()
        turns = self.envs.reset(
            [job.task for _, _, job in starting],
            [place for place, _, _ in starting],
            [job.seed % 2**32 for _, _, job in starting],
            with_state=self.player.needs_state,
        )
        return [
            _Running(number, self.player.begin_episode(place, job, turn), now)
            for (place, number, job), turn in zip(starting, turns, strict=True)
        ]

    def _play_turn(self, live: list[Episode], params: SamplingParams) -> None:
        """One action for every live episode."""
        requests = [self.player.make_request(episode, params) for episode in live]
        asked = time.perf_counter()
        samples = self.sampler.generate_blocking(requests)
        engine_s = time.perf_counter() - asked
        acting = []
        for answered in zip(live, requests, samples, strict=True):
            answered[0].engine_s += engine_s
            acting += [] if self.player.record_summary(*answered) else [answered]
        reads = [self.player.read_reply(sample) for _, _, sample in acting]
        turns = self.envs.step(
            [episode.place for episode, _, _ in acting],
            [read.actions for read in reads],
            with_state=self.player.needs_state,
        )
        for (episode, request, sample), read, turn in zip(acting, reads, turns, strict=True):
            self.player.record_step(episode, request, sample, read, turn)


def _truncate_late(running: Sequence[_Running], timeout_s: float) -> None:
    now = time.perf_counter()
    for one in running:
        if one.episode.status is None and now - one.started_s > timeout_s:
            one.episode.status = Status.TRUNCATED
