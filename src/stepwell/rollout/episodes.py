"""The episode loop: many episodes in lock step, one engine call per turn.

    jobs ─► reset ─► ┌ request ─► engine.generate ─► read ─► env.step ─► record ┐ ─► trajectories
                     └───────── every episode that is not over ◄───────────────┘

All running episodes request their next action in one call, in the order of their jobs. Seeds follow from
the job's seed and the turn. So a rollout is a pure function of weights, jobs and settings, and repeats bit
for bit.

What ends an episode
* The environment: success, or failure (its own turn limit included).
* The budget: a full context, or `timeout_s`: truncated. A first prompt that does not fit ends an episode
  without a step.
* The system: an environment that raises. The job is tried again up to `retries` times. What still fails is in
  `RolloutResult.failures` and is never trained on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from stepwell.core import Request, Sampled, SamplingParams, Status, Trajectory
from stepwell.envs.batch import EnvBatch
from stepwell.rollout.episode import Episode
from stepwell.rollout.jobs import Job, RolloutResult
from stepwell.rollout.player import Player


class BlockingSampler(Protocol):
    """An engine that answers a whole list at once."""

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order."""
        ...


class Rollout:
    """Plays jobs in copies of one environment."""

    def __init__(self, envs: EnvBatch, player: Player, sampler: BlockingSampler) -> None:
        self.envs, self.player, self.sampler = envs, player, sampler

    def run(
        self,
        jobs: Sequence[Job],
        params: SamplingParams,
        *,
        retries: int = 0,
        timeout_s: float | None = None,
    ) -> RolloutResult:
        """Play every job once, and again if the system failed."""
        rolled = RolloutResult([])
        results: dict[int, Trajectory] = {}
        waiting = list(enumerate(jobs))
        for attempt in range(retries + 1):
            size = len(self.envs.envs)
            played = [
                pair
                for start in range(0, len(waiting), size)
                for pair in self._play_batch(waiting[start : start + size], params, timeout_s)
            ]
            results.update(played)
            waiting = [(i, jobs[i]) for i, _ in waiting if results[i].status is Status.INFRA_ERROR]
            if not waiting:
                break
            rolled.num_retries += len(waiting) if attempt < retries else 0
        for i in range(len(jobs)):
            failed = results[i].status is Status.INFRA_ERROR
            (rolled.failures if failed else rolled.trajectories).append(results[i])
        return rolled

    def _play_batch(
        self, jobs: Sequence[tuple[int, Job]], params: SamplingParams, timeout_s: float | None
    ) -> list[tuple[int, Trajectory]]:
        started = time.perf_counter()
        turns = self.envs.reset(
            [job.task for _, job in jobs],
            seeds=[job.seed % 2**32 for _, job in jobs],
            with_state=self.player.needs_state,
        )
        episodes = [
            self.player.begin_episode(place, job, turn)
            for place, ((_, job), turn) in enumerate(zip(jobs, turns, strict=True))
        ]
        live = [episode for episode in episodes if episode.status is None]
        while live:
            if timeout_s is not None and time.perf_counter() - started > timeout_s:
                for episode in live:
                    episode.status = Status.TRUNCATED
                break
            live = self._play_turn(live, params)
        wall_s = time.perf_counter() - started
        return [
            (number, self.player.build_trajectory(episode, wall_s))
            for (number, _), episode in zip(jobs, episodes, strict=True)
        ]

    def _play_turn(self, live: list[Episode], params: SamplingParams) -> list[Episode]:
        """One action for every live episode; the episodes that are not over."""
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
        return [episode for episode in live if episode.status is None]
