"""The asynchronous rollout: every environment batch continues as soon as it can.

    feed.take_next ─► reset ─► ┌ request ─► RequestQueue ─► read ─► step ─► record ┐ ─► feed.report
                               └──────── each place of each environment batch ◄────┘

One task drives each environment batch. It fills idle places with episodes, posts the requests of its
environments, and steps those whose bundle is answered while the others still wait. An `EpisodeFeed` says what
to play and receives the results. With `lock_step` all batches move together instead: every turn waits for all
environments, and all requests go out in one call. Both ways record the same steps from the same answers. With
`moves_together` a batch waits for the actions of all its places (`envs/robots/vector.py`).

Invariants
* Calls to one environment batch never overlap.
* Every episode taken from the feed is reported to it exactly once, or counted in `num_abandoned` if the
  driver was stopped: begun = finished + failed + abandoned + running.
* A worker that fails costs the episodes that were in it: each ends as `infra_error`
  (`PlayedEpisode.is_lost`), and its place is used again. A worker that only fails ends the rollout.
* Samples for an environment that was restarted meanwhile are dropped, never stepped with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepwell.core import InfraError, Request, Sampled, SamplingParams, Status, Trajectory, WorkerError
from stepwell.envs.turns import Turn
from stepwell.rollout.episode import Episode
from stepwell.rollout.jobs import Job
from stepwell.rollout.player import Player
from stepwell.workers.busy_times import BusyTimes
from stepwell.workers.contracts import Simulator
from stepwell.workers.request_queue import PostedBundle, RequestQueue
from stepwell.workers.shards import ActionRequest

MAX_FAILURES = 20
"""A rollout gives up after this many failed calls of one environment batch in a row."""


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """An episode to play, how to sample its actions, its time limit (None: no limit), and its siblings."""

    job: Job
    params: SamplingParams
    timeout_s: float | None = None
    group_size: int = 1


@dataclass(frozen=True, slots=True)
class PlayedEpisode:
    """The result of a job. `is_lost`: a worker failed, which says nothing about the job."""

    job: Job
    trajectory: Trajectory
    is_lost: bool = False
    num_tries: int = 1


class EpisodeFeed(Protocol):
    """Supplies episodes and receives their results. Called on the driver's event loop; must not block."""

    def take_next(self) -> PlannedEpisode | None:
        """The next episode, or None if there is none now (call `Driver.wake` once there is one)."""

    def report(self, played: PlayedEpisode) -> None:
        """Take the result of an episode that has ended."""


@dataclass(slots=True)
class EpisodeCounts:
    """Numbers of episodes and turns since the start."""

    num_started: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_abandoned: int = 0
    num_turns: int = 0


@dataclass(slots=True, eq=False)
class _Host:
    """A simulator. `incarnation` counts how often its episodes were lost."""

    simulator: Simulator
    incarnation: int = 0


@dataclass(slots=True, eq=False)
class _Live:
    """A running episode in one place of a batch."""

    episode: Episode
    start: PlannedEpisode
    began_s: float
    incarnation: int
    request: Request | None = None
    asked_s: float = 0.0


@dataclass(slots=True, eq=False)
class _BatchState:
    """An environment batch: its running episodes by place, and its idle places."""

    host: _Host
    batch: int  # of its simulator
    number: int  # of all
    first_place: int
    idle: list[int]
    live: dict[int, _Live] = field(default_factory=dict)
    waiting: dict[asyncio.Future[Any], tuple[int, ...]] = field(default_factory=dict)
    num_failures: int = 0  # failed calls of its simulator, in a row
    num_refused: int = 0  # bundles of it that generators failed, in a row
    wake_signal: asyncio.Future[None] | None = None
    is_woken: bool = False


class Driver:
    """Plays the episodes of a feed in the environment batches of all simulators."""

    def __init__(
        self,
        simulators: Sequence[Simulator],
        queue: RequestQueue,
        player: Player,
        feed: EpisodeFeed,
        *,
        lock_step: bool = False,
        moves_together: bool = False,
        busy_times: BusyTimes | None = None,
    ) -> None:
        self.queue, self.player, self.feed, self.lock_step = queue, player, feed, lock_step
        self._answers_wanted = asyncio.ALL_COMPLETED if moves_together else asyncio.FIRST_COMPLETED
        self.busy_times = busy_times or queue.busy_times
        self.counts = EpisodeCounts()
        self._is_stopped = False
        self._lanes: list[_BatchState] = []
        place = 0
        hosts = [_Host(simulator) for simulator in simulators]
        for number in range(max((s.num_batches for s in simulators), default=0)):
            for host in hosts:  # one batch of each in turn, so that the first jobs go to different simulators
                if number < host.simulator.num_batches:
                    size = host.simulator.batch_size
                    self._lanes.append(_BatchState(host, number, len(self._lanes), place, list(range(size))))
                    place += size
        for simulator in simulators:
            self.busy_times.register("simulators", simulator.name)

    @property
    def num_live(self) -> int:
        """Running episodes."""
        return sum(len(lane.live) for lane in self._lanes)

    @property
    def num_places(self) -> int:
        """All environments."""
        return sum(len(lane.idle) + len(lane.live) for lane in self._lanes)

    def wake(self) -> None:
        """Ask the feed again for episodes."""
        for lane in self._lanes:
            lane.is_woken = True
            if lane.wake_signal is not None and not lane.wake_signal.done():
                lane.wake_signal.set_result(None)

    def stop(self) -> None:
        """Begin no more episodes. `run` returns once its pending calls are answered."""
        self._is_stopped = True
        self.wake()

    async def run(self) -> None:
        """Play until `stop`. Episodes that still run then are abandoned and counted."""
        jobs = [self._play_in_lock_step()] if self.lock_step else list(map(self._drive_batch, self._lanes))
        tasks = [asyncio.ensure_future(job) for job in jobs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.counts.num_abandoned += self.num_live
            for lane in self._lanes:
                lane.live.clear()

    # --- each batch by itself -------------------------------------------------------------

    async def _drive_batch(self, lane: _BatchState) -> None:
        while not self._is_stopped:
            self._post_requests(lane, await self._begin_episodes(lane))
            waited = set(lane.waiting)
            if lane.idle and not (waited and self._answers_wanted == asyncio.ALL_COMPLETED):
                waited.add(self._get_wake_signal(lane))  # a new job wakes it too
            await asyncio.wait(waited, return_when=self._answers_wanted)
            answered = [future for future in lane.waiting if future.done()]
            if answered and not self._is_stopped:
                self._post_requests(lane, await self._step_places(lane, answered))

    def _get_wake_signal(self, lane: _BatchState) -> asyncio.Future[None]:
        """Done when the feed may have an episode; at once if `wake` was called since it was last asked."""
        if lane.wake_signal is None or lane.wake_signal.done():
            lane.wake_signal = asyncio.get_running_loop().create_future()
        if (lane.is_woken or self._is_stopped) and not lane.wake_signal.done():
            lane.wake_signal.set_result(None)
        return lane.wake_signal

    def _post_requests(self, lane: _BatchState, places: Sequence[int]) -> None:
        if places:
            for posted in self.queue.post_requests([self._make_request(lane, place) for place in places]):
                lane.waiting[posted.answer] = tuple(places[i] for i in posted.indices)

    # --- all of them in step --------------------------------------------------------------

    async def _play_in_lock_step(self) -> None:
        while not self._is_stopped:
            await asyncio.gather(*(self._begin_episodes(lane) for lane in self._lanes))
            asking = [(lane, place) for lane in self._lanes for place in sorted(lane.live)]
            if not asking:
                await asyncio.wait(
                    [self._get_wake_signal(lane) for lane in self._lanes], return_when="FIRST_COMPLETED"
                )
                continue
            posted = self.queue.post_at_once([self._make_request(lane, place) for lane, place in asking])
            await asyncio.wait(self._split_answers(posted, asking))
            await asyncio.gather(
                *(self._step_places(lane, list(lane.waiting)) for lane in self._lanes if lane.waiting)
            )

    @staticmethod
    def _split_answers(
        posted: Sequence[PostedBundle], asking: Sequence[tuple[_BatchState, int]]
    ) -> list[asyncio.Future[list[Sampled]]]:
        """Give every batch, for each call, a future of its own part of the answer."""
        parts: list[asyncio.Future[list[Sampled]]] = []
        for one in posted:
            by_lane: dict[_BatchState, list[int]] = {}
            for position, i in enumerate(one.indices):
                by_lane.setdefault(asking[i][0], []).append(position)
            for lane, mine in by_lane.items():
                parts.append(asyncio.ensure_future(_select_samples(one, mine)))
                lane.waiting[parts[-1]] = tuple(asking[one.indices[position]][1] for position in mine)
        return parts

    # --- one call each --------------------------------------------------------------------

    def _make_request(self, lane: _BatchState, place: int) -> ActionRequest:
        live = lane.live[place]
        live.request = self.player.make_request(live.episode, live.start.params)
        live.asked_s = asyncio.get_running_loop().time()
        return ActionRequest(live.request, live.start.job, lane.number, len(live.episode.steps))

    async def _begin_episodes(self, lane: _BatchState) -> list[int]:
        """Start an episode in every idle place that gets one; the places that now need an action."""
        begun: list[tuple[int, PlannedEpisode]] = []
        lane.is_woken = False
        while lane.idle and not self._is_stopped:
            start = self.feed.take_next()
            if start is None:
                break
            begun.append((lane.idle.pop(0), start))
        if not begun:
            return []
        self.counts.num_started += len(begun)
        now, host = asyncio.get_running_loop().time(), lane.host
        for place, start in begun:  # they count as running from now on, whatever happens
            episode = Episode(lane.first_place + place, start.job, Turn().observation)
            lane.live[place] = _Live(episode, start, now, host.incarnation)
        places, jobs = [place for place, _ in begun], [start.job for _, start in begun]
        simulator, seeds = host.simulator, [job.seed % 2**32 for job in jobs]
        turns = await self._call_simulator(
            lane, places, simulator.reset(lane.batch, places, [j.task for j in jobs], seeds)
        )
        asking = []
        for place, turn in zip(places, turns, strict=True) if turns is not None else ():
            live = lane.live[place]
            live.incarnation = host.incarnation
            live.episode = self.player.begin_episode(live.episode.place, live.start.job, turn)
            asking += [place] if self._settle_turn(lane, place, turn) else []
        return asking

    async def _step_places(
        self, lane: _BatchState, answered: Sequence[asyncio.Future[list[Sampled]]]
    ) -> list[int]:
        """One turn of the places that have answers; the places that now need another action."""
        acting: list[tuple[int, Sampled]] = []
        for future in answered:
            asked = lane.waiting.pop(future)
            error = future.exception()
            if isinstance(error, InfraError):
                lane.num_refused += 1
                for place in asked:
                    self._lose_episode(lane, place, error)
                self._check_failures(lane.num_refused, "generation", error)
            elif error is not None:
                raise error
            else:
                lane.num_refused = 0
                acting += zip(asked, future.result(), strict=True)
        acting = [(place, sample) for place, sample in acting if not self._is_over(lane, place)]
        asking, acting = self._record_summaries(lane, acting)
        if not acting:
            return asking
        reads = [self.player.read_reply(sample) for _, sample in acting]
        places, actions = [place for place, _ in acting], [read.actions for read in reads]
        turns = await self._call_simulator(
            lane, places, lane.host.simulator.step(lane.batch, places, actions)
        )
        for (place, sample), read, turn in (
            zip(acting, reads, turns, strict=True) if turns is not None else ()
        ):
            live = lane.live[place]
            assert live.request is not None
            self.player.record_step(live.episode, live.request, sample, read, turn)
            self.counts.num_turns += 1
            asking += [place] if self._settle_turn(lane, place, turn) else []
        return asking

    def _record_summaries(
        self, lane: _BatchState, answered: Sequence[tuple[int, Sampled]]
    ) -> tuple[list[int], list[tuple[int, Sampled]]]:
        """Record the summaries among these replies; returns the places to ask again, and other replies."""
        asking: list[int] = []
        acting: list[tuple[int, Sampled]] = []
        for place, sample in answered:
            live = lane.live[place]
            assert live.request is not None
            if not self.player.record_summary(live.episode, live.request, sample):
                acting.append((place, sample))
            elif live.episode.status is None:
                asking.append(place)
            else:
                self._finish_episode(lane, place)
        return asking, acting

    async def _call_simulator(self, lane: _BatchState, places: Sequence[int], call: Any) -> list[Turn] | None:
        """The turns that a simulator answers, or None if it failed and the episodes are lost."""
        host = lane.host
        incarnation = host.incarnation
        try:
            with self.busy_times.track("simulators", host.simulator.name):
                turns: list[Turn] = await call
        except InfraError as error:
            if host.incarnation == incarnation:  # otherwise another batch of it has noticed already
                host.incarnation += 1
            for place in places:
                self._lose_episode(lane, place, error)
            lane.num_failures += 1
            self._check_failures(lane.num_failures, host.simulator.name, error)
            await asyncio.sleep(0.01 * lane.num_failures)
            return None
        lane.num_failures = 0
        assert len(turns) == len(places), f"{host.simulator.name} gave {len(turns)} turns for {len(places)}"
        return turns

    @staticmethod
    def _check_failures(num_failures: int, who: str, error: InfraError) -> None:
        if num_failures >= MAX_FAILURES:
            problem = f"{who}: {num_failures} calls failed in a row; the last error: {error}"
            raise WorkerError(problem) from error

    def _is_over(self, lane: _BatchState, place: int) -> bool:
        """Whether an answered episode cannot continue: its simulator was lost, or its time is up."""
        live, now = lane.live[place], asyncio.get_running_loop().time()
        live.episode.engine_s += now - live.asked_s
        if live.incarnation != lane.host.incarnation:
            self._lose_episode(lane, place, WorkerError(f"{lane.host.simulator.name} was restarted"))
        elif live.start.timeout_s is not None and now - live.began_s > live.start.timeout_s:
            live.episode.status = Status.TRUNCATED
            self._finish_episode(lane, place)
        return place not in lane.live

    def _settle_turn(self, lane: _BatchState, place: int, turn: Turn) -> bool:
        """Finish the episode if this turn was its last; whether it goes on."""
        if lane.live[place].episode.status is None:
            return True
        self._finish_episode(lane, place, is_lost=isinstance(turn.error, WorkerError))
        return False

    def _lose_episode(self, lane: _BatchState, place: int, error: InfraError) -> None:
        live = lane.live[place]
        live.episode.mark_failed(error)
        self._finish_episode(lane, place, is_lost=isinstance(error, WorkerError))

    def _finish_episode(self, lane: _BatchState, place: int, *, is_lost: bool = False) -> None:
        live = lane.live.pop(place)
        lane.idle.append(place)
        wall_s = asyncio.get_running_loop().time() - live.began_s
        trajectory = self.player.build_trajectory(live.episode, wall_s)
        failed = trajectory.status is Status.INFRA_ERROR
        self.counts.num_failed += failed
        self.counts.num_finished += not failed
        self.feed.report(PlayedEpisode(live.start.job, trajectory, is_lost))


async def _select_samples(posted: PostedBundle, positions: Sequence[int]) -> list[Sampled]:
    found = await posted.answer
    return [found[position] for position in positions]
