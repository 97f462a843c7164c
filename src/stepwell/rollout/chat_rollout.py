"""Episodes of an outside model, each as fast as its answers come, up to as many at once as there are worlds.

    jobs ─► ┌ reset ─► ┌ ask ─► read ─► step ─► record ┐ ─► on_done ┐
            │          └── until the episode is over ◄─┘            │
            └──────────── every world, until no job is left ◄───────┘

Worlds are stepped in one thread, beside the calls. An episode that fails for the system's reasons (a call
without an answer, a world that raises) is played again, up to `retries` times, after the jobs that wait.

Invariants
* Every job ends once: in `Rolled.trajectories`, or in `failures` when its retries are spent.
* `on_done` hears of every trajectory as it ends, failed tries too: whoever stops early has all of them.
* When so many episodes failed one after the other that the API must be gone, the rest is not played.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stepwell.core import ContextLengthError, EngineError, InfraError, SamplingParams, Status, Trajectory
from stepwell.envs.batch import EnvBatch
from stepwell.rollout.chat_model import ChatModel
from stepwell.rollout.chat_player import ChatPlayer
from stepwell.rollout.jobs import Job, Rolled
from stepwell.rollout.player import Episode

MIN_IN_A_ROW = 8
"""Failed episodes in a row after which a rollout may give up; at least as many as are played at once."""
T = TypeVar("T")


class ChatRollout:
    """Plays jobs in copies of one world with a model behind an API."""

    def __init__(self, envs: EnvBatch, player: ChatPlayer, model: ChatModel) -> None:
        self.envs, self.player, self.model = envs, player, model
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stepwell-worlds")
        self._in_a_row = 0

    async def run(
        self,
        jobs: Sequence[Job],
        params: SamplingParams,
        *,
        retries: int = 0,
        on_done: Callable[[int, Trajectory], None] = lambda number, trajectory: None,
    ) -> Rolled:
        """Play every job once, and again where the system failed. `on_done` gets the job's number."""
        results: dict[int, Trajectory] = {}
        waiting = deque((number, 0) for number in range(len(jobs)))
        rolled = Rolled([])

        async def work(place: int) -> None:
            while waiting:
                number, tried = waiting.popleft()
                played = await self._play(place, jobs[number], params)
                results[number] = played
                on_done(number, played)
                failed = played.status is Status.INFRA_ERROR
                self._count(failed, played)
                if failed and tried < retries:
                    rolled.num_retries += 1
                    waiting.append((number, tried + 1))

        num_places = min(len(self.envs.envs), len(jobs))
        try:
            async with asyncio.TaskGroup() as group:
                for place in range(num_places):
                    group.create_task(work(place))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # the first one stopped the others
        finally:
            self._thread.shutdown()
        for number in range(len(jobs)):
            failed = results[number].status is Status.INFRA_ERROR
            (rolled.failures if failed else rolled.trajectories).append(results[number])
        return rolled

    def _count(self, failed: bool, played: Trajectory) -> None:
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if self._in_a_row >= max(MIN_IN_A_ROW, 2 * len(self.envs.envs)):
            raise EngineError(
                f"{self._in_a_row} episodes in a row failed for the system's reasons; "
                f"the last: {played.error}"
            )

    async def _play(self, place: int, job: Job, params: SamplingParams) -> Trajectory:
        started = time.perf_counter()
        with_state = self.player.needs_state
        seeds = [job.seed % 2**32]
        (turn,) = await self._in_worlds(
            lambda: self.envs.reset([job.task], [place], seeds, with_state=with_state)
        )
        episode = self.player.begin(place, job, turn)
        while episode.status is None:
            await self._turn(episode, params)
        return self.player.finished(episode, time.perf_counter() - started)

    async def _turn(self, episode: Episode, params: SamplingParams) -> None:
        request = self.player.request(episode, params)
        asked = time.perf_counter()
        try:
            said = await self.model.ask(episode.own.messages, self.player.tools, request.params)
        except ContextLengthError as error:
            episode.status, episode.error = Status.TRUNCATED, str(error)
            return
        except InfraError as error:
            episode.fail(error)
            return
        episode.engine_s += time.perf_counter() - asked
        read = self.player.read(said)
        place, with_state = episode.place, self.player.needs_state
        (turn,) = await self._in_worlds(
            lambda: self.envs.step([place], [read.actions], with_state=with_state)
        )
        self.player.record(episode, request, said, read, turn)

    async def _in_worlds(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
