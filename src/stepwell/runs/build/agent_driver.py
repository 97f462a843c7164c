"""A user's own agent beside generators in their own processes: who plays the episodes of a stream.

    GroupStream.take_next ─► session ─► agent processes ─► HTTP ─► gateway ─► QueueSampler ─► RequestQueue
    GroupStream.report ◄─ trajectory ◄─ result ◄──┘                     └─► pool: steps, as they are sampled

The interface is that of `Driver`, without simulators. Three threads take part: that of the workers (stream,
queue, this driver), that of the gateway, and one that talks to the agent's processes.

Invariants
* Every episode taken from the feed is reported to it exactly once, when its session is finished in the pool;
  or it is counted in `num_abandoned`, and its session ended as `infra_error`, if the driver was stopped.
* A failure of the system is tried again in a new session up to `train.max_env_retries` times, as without
  workers; the feed hears of each (`note_retry`).
* Each step has the version of the weights that sampled it, whatever was published since its session began.
* A call whose generator died goes to the queue again: the agent does not notice.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace

from stepwell.config.run import RunConfig
from stepwell.core import Request, Sampled, Status, Task, WorkerError
from stepwell.rollout import AgentJob, AgentResult, Job
from stepwell.rollout.agent_service import AgentService
from stepwell.runs.build.agent_rollout import list_process_settings
from stepwell.runs.build.agent_sessions import AgentEpisode, AgentSessions
from stepwell.runs.build.components import Components
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.workers.driver import EpisodeCounts, PlannedEpisode, PlayedEpisode
from stepwell.workers.request_queue import RequestQueue
from stepwell.workers.shards import ActionRequest
from stepwell.workers.stream import GroupStream

AGENTS = "agents"
GENERATOR_TRIES = 3


@dataclass(eq=False)
class QueueSampler:
    """Samples with the generators of a run, for callers on any event loop."""

    queue: RequestQueue
    loop: asyncio.AbstractEventLoop
    wrap_request: Callable[[Request], ActionRequest]
    on_wait: Callable[[str, int], None]  # a conversation waits for one call more, or one less
    is_closed: bool = False
    _calls: set[asyncio.Task[list[Sampled]]] = field(default_factory=set)

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order."""
        call = asyncio.run_coroutine_threadsafe(self._track_call(requests), self.loop)
        try:
            return await asyncio.wrap_future(call)
        except (asyncio.CancelledError, CancelledError):
            if self.is_closed:
                raise WorkerError("the run plays no more episodes") from None
            raise

    async def _track_call(self, requests: Sequence[Request]) -> list[Sampled]:
        if self.is_closed:
            raise WorkerError("the run plays no more episodes")
        task, conversation = asyncio.current_task(), requests[0].conversation or ""
        assert task is not None
        self._calls.add(task)
        self.on_wait(conversation, 1)
        try:
            return await self._ask_generators([self.wrap_request(request) for request in requests])
        finally:
            self.on_wait(conversation, -1)
            self._calls.discard(task)

    async def _ask_generators(self, requests: Sequence[ActionRequest]) -> list[Sampled]:
        for num_left in reversed(range(GENERATOR_TRIES)):
            posted = self.queue.post_requests(requests)
            try:
                answers = await asyncio.gather(*(bundle.answer for bundle in posted))
            except WorkerError:  # it died; its successor has the same weights
                if num_left == 0:
                    raise
                continue
            found = {
                index: sample
                for bundle, answer in zip(posted, answers, strict=True)
                for index, sample in zip(bundle.indices, answer, strict=True)
            }
            return [found[index] for index in range(len(requests))]
        raise AssertionError

    def close(self) -> None:
        """Refuse further calls, and those under way. Called on the workers' event loop."""
        self.is_closed = True
        for call in list(self._calls):
            call.cancel()


@dataclass(slots=True, eq=False)
class _Live:
    """A running episode: what was planned, its present try, and its number."""

    start: PlannedEpisode
    episode: AgentEpisode
    number: int


class AgentDriver:
    """Plays the episodes of a feed with the user's function."""

    def __init__(self, queue: RequestQueue, feed: GroupStream, loop: asyncio.AbstractEventLoop) -> None:
        self.feed, self.counts, self._loop = feed, EpisodeCounts(), loop
        self.sampler = QueueSampler(queue, loop, self._wrap_request, self._count_waiting)
        self.busy_times = queue.busy_times
        self.busy_times.register("simulators", AGENTS)
        self._is_busy = self._is_stopped = False
        self._live: dict[str, _Live] = {}
        self._by_session: dict[str, _Live] = {}
        self._waiting: Counter[str] = Counter()  # calls that wait for a generator, by session
        self._numbers = itertools.count()
        self._woken = asyncio.Event()
        self._endings: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    @classmethod
    def start(
        cls,
        config: RunConfig,
        components: Components,
        queue: RequestQueue,
        feed: GroupStream,
        loop: asyncio.AbstractEventLoop,
    ) -> AgentDriver:
        """Start the gateway and the agent's processes; refuses an agent that cannot be called. Waits."""
        assert config.own_agent.function is not None
        driver = cls(queue, feed, loop)
        settings = list_process_settings(config, components.folder)
        renderer, pool = components.language.renderer, components.pool
        driver.processes = AgentService(config.own_agent.function, **settings)
        try:
            driver.sessions = AgentSessions.start(config, driver.sampler, renderer, pool, components.run_name)
        except BaseException:
            driver.processes.close()
            raise
        return driver

    processes: AgentService
    sessions: AgentSessions

    @property
    def num_live(self) -> int:
        """Running episodes."""
        return len(self._live)

    @property
    def num_places(self) -> int:
        """Episodes that can run at once."""
        return self.processes.num_places

    def wake(self) -> None:
        """Ask the feed again for episodes."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no more episodes. `run` ends those under way and returns."""
        self._is_stopped = True
        self.wake()

    async def run(self) -> None:
        """Play until `stop`. Episodes that still run then are abandoned and counted."""
        playing = asyncio.ensure_future(
            asyncio.to_thread(self.processes.serve, self._pass_result, on_retry=self._retry_job)
        )
        playing.add_done_callback(lambda _: self.wake())
        try:
            while not (self._is_stopped or playing.done() or self._failure):
                self._woken.clear()
                await self._begin_episodes()
                await self._woken.wait()
        finally:
            ending = asyncio.ensure_future(self._end_playing(playing))
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:  # in a hurry; but no session stays open
                await ending
                raise
        if self._failure is not None:
            raise self._failure
        playing.result()

    async def _end_playing(self, playing: asyncio.Future[None]) -> None:
        """End the processes, take the finished results, and give up the rest."""
        self.processes.stop_serving()
        await asyncio.wait([playing])
        if self._endings:
            await asyncio.wait(set(self._endings))
        await self._abandon_episodes()
        self.sampler.close()

    def close(self) -> None:
        """End the agent's processes and the gateway. Waits."""
        self.processes.close()
        self.sessions.close()

    # --- episodes ---------------------------------------------------------------------------

    async def _begin_episodes(self) -> None:
        """Start as many episodes as there are places and the feed has."""
        begun: list[tuple[str, _Live]] = []
        while len(self._live) < self.num_places and not self._is_stopped:
            start = self.feed.take_next()
            if start is None:
                break
            number = next(self._numbers)
            episode = self.sessions.make_episode(start.job, start.params, start.group_size)
            live = self._live[str(number)] = _Live(start, episode, number)
            self._by_session[episode.session] = live
            begun.append((str(number), live))
        if begun:
            self.counts.num_started += len(begun)
            await self.sessions.start_call(self.sessions.open_sessions([live.episode for _, live in begun]))
            self.processes.submit_jobs(
                [self.sessions.make_job(id, live.episode, live.start.timeout_s) for id, live in begun]
            )
            self._note_busy()

    def _retry_job(self, failed: AgentJob, result: AgentResult) -> AgentJob:
        """Another try in a new session. Called by the thread of the processes."""
        live, sessions = self._live[failed.id], self.sessions
        before = live.episode
        live.episode = sessions.make_episode(before.job, before.params, before.group_size)
        self._by_session[live.episode.session] = live
        sessions.run_call(sessions.finish_session(before, result))
        self._by_session.pop(before.session)
        sessions.run_call(sessions.open_sessions([live.episode]))
        self._loop.call_soon_threadsafe(self._note_retry, before.job)
        return replace(failed, base_url=sessions.make_job(failed.id, live.episode, failed.timeout_s).base_url)

    def _note_retry(self, job: Job) -> None:
        self.counts.num_started += 1
        self.counts.num_failed += 1
        self.feed.note_retry(job)

    def _pass_result(self, result: AgentResult) -> None:
        """Hand a result to the event loop. Called by the thread of the processes."""
        self._loop.call_soon_threadsafe(self._take_result, result)

    def _take_result(self, result: AgentResult) -> None:
        ending = asyncio.ensure_future(self._finish_episode(result))
        self._endings.add(ending)
        ending.add_done_callback(self._on_ending_done)

    def _on_ending_done(self, ending: asyncio.Task[None]) -> None:
        self._endings.discard(ending)
        if not ending.cancelled() and ending.exception() is not None:
            self._failure = self._failure or ending.exception()
        self.wake()

    async def _finish_episode(self, result: AgentResult) -> None:
        live = self._live[result.id]
        trajectory = await self.sessions.start_call(self.sessions.finish_episode(live.episode, result))
        del self._live[result.id], self._by_session[live.episode.session]
        failed = trajectory.status is Status.INFRA_ERROR
        self.counts.num_failed += failed
        self.counts.num_finished += not failed
        self._note_busy()
        self.feed.report(PlayedEpisode(live.start.job, trajectory, num_tries=result.num_tries))

    async def _abandon_episodes(self) -> None:
        """End the sessions of what was not played to its end: it counts as not played."""
        self.counts.num_abandoned += len(self._live)
        await asyncio.gather(*(self._abandon_episode(id, live) for id, live in self._live.items()))
        self._live.clear()
        self._by_session.clear()
        self._note_busy()

    async def _abandon_episode(self, id: str, live: _Live) -> None:
        result = AgentResult(id, "infra_error", error="the run ended before this episode did")
        try:
            await self.sessions.start_call(self.sessions.finish_session(live.episode, result))
        except ServiceError as error:
            if error.kind is not ErrorKind.NOT_FOUND:  # else it was not open yet
                raise

    # --- calls of the model -----------------------------------------------------------------

    def _wrap_request(self, request: Request) -> ActionRequest:
        """What shard rules and priorities may read of a call."""
        live = self._by_session.get(request.conversation or "")
        if live is None:  # a call of a program that is not the agent
            return ActionRequest(request, Job(Task("gateway", {}), "", 0), 0, 0)
        return ActionRequest(request, live.start.job, live.number, max(live.episode.num_calls - 1, 0))

    def _count_waiting(self, session: str, change: int) -> None:
        self._waiting[session] += change
        if not self._waiting[session]:
            del self._waiting[session]
        self.counts.num_turns += change < 0
        self._note_busy()

    def _note_busy(self) -> None:
        """Agents are busy while one of them does something else than to wait for the model."""
        is_busy = len(self._live) > len(self._waiting)
        if is_busy != self._is_busy:
            (self.busy_times.begin if is_busy else self.busy_times.end)("simulators", AGENTS)
            self._is_busy = is_busy
