"""Episodes of an outside model, each as fast as its replies come, one per environment at a time.

    jobs ─► ┌ reset ─► ┌ ask ─► read ─► step ─► record ┐ ─► on_done ┐
            │          └── until the episode is over ◄─┘            │
            └────────── every environment, until no job is left ◄───┘

Environments are stepped in one thread, beside the calls; those that wait, all at once. An episode that fails
because of the system (a call without an answer, an environment that raises) is played again, up to `retries`
times, after the waiting jobs.

Invariants
* Every job ends once: in `RolloutResult.trajectories`, or in `failures` when its retries are used up.
* `on_done` gets every trajectory as it ends, failed attempts too: a rollout that is stopped early loses none.
* When so many episodes in a row have failed that the API must be gone, the rest is not played.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stepwell.core import ContextLengthError, EngineError, InfraError, SamplingParams, Status, Trajectory
from stepwell.envs.async_batch import AsyncEnvBatch
from stepwell.envs.batch import EnvBatch
from stepwell.rollout.chat_model import ChatModel
from stepwell.rollout.chat_player import ChatPlayer
from stepwell.rollout.episode import Episode
from stepwell.rollout.jobs import Job, RolloutResult

MIN_IN_A_ROW = 8
"""A rollout gives up after this many failed episodes in a row; never before twice its environments."""


class ChatRollout:
    """Plays jobs in copies of one environment with a model behind an API."""

    def __init__(self, envs: EnvBatch, player: ChatPlayer, model: ChatModel) -> None:
        self.envs, self.player, self.model = envs, player, model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stepwell-envs")
        self._places = AsyncEnvBatch(envs, self._thread)
        self._in_a_row = 0

    async def run(
        self,
        jobs: Sequence[Job],
        params: SamplingParams,
        *,
        retries: int = 0,
        on_done: Callable[[int, Trajectory], None] = lambda number, trajectory: None,
    ) -> RolloutResult:
        """Play every job once, and again if the system failed. `on_done` gets the job's number."""
        results: dict[int, Trajectory] = {}
        waiting = deque((number, 0) for number in range(len(jobs)))
        rolled = RolloutResult([])

        async def play_waiting_jobs(place: int) -> None:
            while waiting:
                number, tried = waiting.popleft()
                played = await self._play_episode(place, jobs[number], params)
                results[number] = played
                on_done(number, played)
                failed = played.status is Status.INFRA_ERROR
                self._count_failures(failed, played)
                if failed and tried < retries:
                    rolled.num_retries += 1
                    waiting.append((number, tried + 1))

        num_places = min(len(self.envs.envs), len(jobs))
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(num_places):
                    group.create_task(play_waiting_jobs(place))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # the first one stopped the others
        finally:
            self._thread.shutdown()
        for number in range(len(jobs)):
            failed = results[number].status is Status.INFRA_ERROR
            (rolled.failures if failed else rolled.trajectories).append(results[number])
        return rolled

    def _count_failures(self, failed: bool, played: Trajectory) -> None:
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if self._in_a_row >= max(MIN_IN_A_ROW, 2 * len(self.envs.envs)):
            raise EngineError(
                f"{self._in_a_row} episodes in a row failed because of the system; "
                f"the last error: {played.error}"
            )

    async def _play_episode(self, place: int, job: Job, params: SamplingParams) -> Trajectory:
        started = time.perf_counter()
        with_state = self.player.needs_state
        seeds = [job.seed % 2**32]
        (turn,) = await self._places.reset([job.task], [place], seeds, with_state=with_state)
        episode = self.player.begin_episode(place, job, turn)
        while episode.status is None:
            await self._play_turn(episode, params)
        return self.player.build_trajectory(episode, time.perf_counter() - started)

    async def _play_turn(self, episode: Episode, params: SamplingParams) -> None:
        request = self.player.make_request(episode, params)
        asked = time.perf_counter()
        try:
            reply = await self.model.ask_model(episode.own.messages, self.player.tools, request.params)
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)
            return
        except InfraError as error:
            episode.mark_failed(error)
            return
        episode.engine_s += time.perf_counter() - asked
        if self.player.record_summary(episode, request, reply):
            return
        read = self.player.read_reply(reply)
        place, with_state = episode.place, self.player.needs_state
        (turn,) = await self._places.step([place], [read.actions], with_state=with_state)
        self.player.record_step(episode, request, reply, read, turn)
