"""The asynchronous rollout: every environment batch goes on as soon as it can.

    feed.next ─► reset ─► ┌ request ─► RequestQueue ─► read ─► step ─► record ┐ ─► feed.done
                          └──── each slot of each environment batch ◄─────────┘

One task drives each environment batch: it fills idle places with jobs, posts what its environments ask,
and steps those whose slots are answered while the others still wait. A `Feed` says what is to be played
and hears what came of it. With `lock_step` all batches move together instead: every turn waits for all
environments, and all of them ask in one call. Both record the same steps from the same answers.

Invariants
* Calls to one environment batch never overlap.
* Every job taken from the feed is reported to it exactly once, or counted in `num_abandoned` when the
  driver was stopped: begun = finished + failed + abandoned + running.
* A worker that fails costs the episodes that were in it: each ends as `infra_error` (`Outcome.is_lost`)
  and its place is used again. A worker that fails again and again with nothing in between ends the rollout.
* What was sampled for an environment that was restarted meanwhile is thrown away, never stepped with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepwell.core import InfraError, Request, Sampled, SamplingParams, Status, Trajectory, WorkerError
from stepwell.envs.turns import Turn
from stepwell.rollout.jobs import Job
from stepwell.rollout.player import Episode, Player
from stepwell.workers.busy_times import Spans
from stepwell.workers.contracts import Simulator
from stepwell.workers.request_queue import Posted, RequestQueue
from stepwell.workers.shards import Ask

MAX_FAILURES = 20
"""Failed calls of one environment batch in a row after which a rollout gives up."""


@dataclass(frozen=True, slots=True)
class Start:
    """An episode to play, how its actions are sampled, and when it is cut (None: never)."""

    job: Job
    params: SamplingParams
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job. `is_lost`: a worker failed under it, which says nothing about the job."""

    job: Job
    trajectory: Trajectory
    is_lost: bool = False


class Feed(Protocol):
    """What is to be played, and who hears of it. Called on the driver's event loop; must not block."""

    def next(self) -> Start | None:
        """The next episode, or None where there is none now (`Driver.wake` when there is one again)."""
        ...

    def done(self, outcome: Outcome) -> None:
        """An episode is over."""
        ...


@dataclass(slots=True)
class Counts:
    """Episodes and turns since the start."""

    num_begun: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_abandoned: int = 0
    num_turns: int = 0


@dataclass(slots=True, eq=False)
class _Host:
    """A simulator; `incarnation` counts how often what it hosted was lost."""

    simulator: Simulator
    incarnation: int = 0


@dataclass(slots=True, eq=False)
class _Live:
    """An episode under way in one place of a batch."""

    episode: Episode
    start: Start
    began_s: float
    incarnation: int
    request: Request | None = None
    asked_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Lane:
    """An environment batch: who is in which place, and who has none."""

    host: _Host
    batch: int  # of its simulator
    number: int  # of all
    first_place: int
    idle: list[int]
    live: dict[int, _Live] = field(default_factory=dict)
    waiting: dict[asyncio.Future[Any], tuple[int, ...]] = field(default_factory=dict)
    num_failures: int = 0  # of its simulator, in a row
    num_refused: int = 0  # slots of it that generators failed, in a row
    bell: asyncio.Future[None] | None = None
    is_rung: bool = False


class Driver:
    """Plays what a feed offers, in the environment batches of all simulators."""

    def __init__(
        self,
        simulators: Sequence[Simulator],
        queue: RequestQueue,
        player: Player,
        feed: Feed,
        *,
        lock_step: bool = False,
        spans: Spans | None = None,
    ) -> None:
        self.queue, self.player, self.feed, self.lock_step = queue, player, feed, lock_step
        self.spans = spans or queue.spans
        self.counts = Counts()
        self._is_stopped = False
        self._lanes: list[_Lane] = []
        place = 0
        hosts = [_Host(simulator) for simulator in simulators]
        for number in range(max((s.num_batches for s in simulators), default=0)):
            for host in hosts:  # one batch of each in turn: the first jobs go to different simulators
                if number < host.simulator.num_batches:
                    size = host.simulator.batch_size
                    self._lanes.append(_Lane(host, number, len(self._lanes), place, list(range(size))))
                    place += size
        for simulator in simulators:
            self.spans.enter("simulators", simulator.name)

    @property
    def num_live(self) -> int:
        """Episodes under way."""
        return sum(len(lane.live) for lane in self._lanes)

    @property
    def num_places(self) -> int:
        """Environments in all."""
        return sum(len(lane.idle) + len(lane.live) for lane in self._lanes)

    def wake(self) -> None:
        """The feed may have something again."""
        for lane in self._lanes:
            lane.is_rung = True
            if lane.bell is not None and not lane.bell.done():
                lane.bell.set_result(None)

    def stop(self) -> None:
        """Begin nothing more; `run` then returns once its calls under way are answered."""
        self._is_stopped = True
        self.wake()

    async def run(self) -> None:
        """Play until `stop`; episodes that are under way then are abandoned and counted."""
        jobs = [self._turns()] if self.lock_step else [self._drive(lane) for lane in self._lanes]
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

    async def _drive(self, lane: _Lane) -> None:
        while not self._is_stopped:
            self._post(lane, await self._begin(lane))
            waited = set(lane.waiting)
            if lane.idle:  # also a new job makes it go on
                waited.add(self._bell(lane))
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            answered = [future for future in lane.waiting if future.done()]
            if answered and not self._is_stopped:
                self._post(lane, await self._step(lane, answered))

    def _bell(self, lane: _Lane) -> asyncio.Future[None]:
        """Done when the feed may have something; at once where it said so since it was last asked."""
        if lane.bell is None or lane.bell.done():
            lane.bell = asyncio.get_running_loop().create_future()
        if (lane.is_rung or self._is_stopped) and not lane.bell.done():
            lane.bell.set_result(None)
        return lane.bell

    def _post(self, lane: _Lane, places: Sequence[int]) -> None:
        if places:
            for posted in self.queue.post([self._ask(lane, place) for place in places]):
                lane.waiting[posted.answer] = tuple(places[i] for i in posted.indices)

    # --- all of them in step --------------------------------------------------------------

    async def _turns(self) -> None:
        while not self._is_stopped:
            await asyncio.gather(*(self._begin(lane) for lane in self._lanes))
            asking = [(lane, place) for lane in self._lanes for place in sorted(lane.live)]
            if not asking:
                await asyncio.wait([self._bell(lane) for lane in self._lanes], return_when="FIRST_COMPLETED")
                continue
            posted = self.queue.post_at_once([self._ask(lane, place) for lane, place in asking])
            await asyncio.wait(self._hand_round(posted, asking))
            await asyncio.gather(
                *(self._step(lane, list(lane.waiting)) for lane in self._lanes if lane.waiting)
            )

    @staticmethod
    def _hand_round(
        posted: Sequence[Posted], asking: Sequence[tuple[_Lane, int]]
    ) -> list[asyncio.Future[list[Sampled]]]:
        """Give every lane, for each call, a future of its own part of the answer."""
        parts: list[asyncio.Future[list[Sampled]]] = []
        for one in posted:
            by_lane: dict[_Lane, list[int]] = {}
            for position, i in enumerate(one.indices):
                by_lane.setdefault(asking[i][0], []).append(position)
            for lane, mine in by_lane.items():
                parts.append(asyncio.ensure_future(_part_of(one, mine)))
                lane.waiting[parts[-1]] = tuple(asking[one.indices[position]][1] for position in mine)
        return parts

    # --- one call each --------------------------------------------------------------------

    def _ask(self, lane: _Lane, place: int) -> Ask:
        live = lane.live[place]
        live.request = self.player.request(live.episode, live.start.params)
        live.asked_s = asyncio.get_running_loop().time()
        return Ask(live.request, live.start.job, lane.number, len(live.episode.steps))

    async def _begin(self, lane: _Lane) -> list[int]:
        """Start an episode in every idle place that there is a job for; gives those that now ask."""
        begun: list[tuple[int, Start]] = []
        lane.is_rung = False
        while lane.idle and not self._is_stopped:
            start = self.feed.next()
            if start is None:
                break
            begun.append((lane.idle.pop(0), start))
        if not begun:
            return []
        self.counts.num_begun += len(begun)
        now, host = asyncio.get_running_loop().time(), lane.host
        for place, start in begun:  # they count as under way from now on, whatever happens
            episode = Episode(lane.first_place + place, start.job, Turn().observation)
            lane.live[place] = _Live(episode, start, now, host.incarnation)
        places, jobs = [place for place, _ in begun], [start.job for _, start in begun]
        simulator, seeds = host.simulator, [job.seed % 2**32 for job in jobs]
        turns = await self._call(
            lane, places, simulator.reset(lane.batch, places, [j.task for j in jobs], seeds)
        )
        asking = []
        for place, turn in zip(places, turns, strict=True) if turns is not None else ():
            live = lane.live[place]
            live.incarnation = host.incarnation
            live.episode = self.player.begin(live.episode.place, live.start.job, turn)
            asking += [place] if self._goes_on(lane, place, turn) else []
        return asking

    async def _step(self, lane: _Lane, answered: Sequence[asyncio.Future[list[Sampled]]]) -> list[int]:
        """One turn of the places whose slots are answered; gives those that ask again."""
        acting: list[tuple[int, Sampled]] = []
        for future in answered:
            asked = lane.waiting.pop(future)
            error = future.exception()
            if isinstance(error, InfraError):
                lane.num_refused += 1
                for place in asked:
                    self._lose(lane, place, error)
                self._give_up(lane.num_refused, "generation", error)
            elif error is not None:
                raise error
            else:
                lane.num_refused = 0
                acting += zip(asked, future.result(), strict=True)
        acting = [(place, sample) for place, sample in acting if not self._is_over(lane, place)]
        if not acting:
            return []
        reads = [self.player.read(sample) for _, sample in acting]
        places, actions = [place for place, _ in acting], [read.actions for read in reads]
        turns = await self._call(lane, places, lane.host.simulator.step(lane.batch, places, actions))
        asking = []
        for (place, sample), read, turn in (
            zip(acting, reads, turns, strict=True) if turns is not None else ()
        ):
            live = lane.live[place]
            assert live.request is not None
            self.player.record(live.episode, live.request, sample, read, turn)
            self.counts.num_turns += 1
            asking += [place] if self._goes_on(lane, place, turn) else []
        return asking

    async def _call(self, lane: _Lane, places: Sequence[int], call: Any) -> list[Turn] | None:
        """The turns that a simulator answers, or None where it failed and the episodes are lost."""
        host = lane.host
        incarnation = host.incarnation
        try:
            with self.spans.working("simulators", host.simulator.name):
                turns: list[Turn] = await call
        except InfraError as error:
            if host.incarnation == incarnation:  # else another batch of it has noticed already
                host.incarnation += 1
            for place in places:
                self._lose(lane, place, error)
            lane.num_failures += 1
            self._give_up(lane.num_failures, host.simulator.name, error)
            await asyncio.sleep(0.01 * lane.num_failures)
            return None
        lane.num_failures = 0
        assert len(turns) == len(places), f"{host.simulator.name} gave {len(turns)} turns for {len(places)}"
        return turns

    @staticmethod
    def _give_up(num_failures: int, who: str, error: InfraError) -> None:
        if num_failures >= MAX_FAILURES:
            raise WorkerError(f"{who}: {num_failures} calls in a row failed, the last: {error}") from error

    def _is_over(self, lane: _Lane, place: int) -> bool:
        """Whether an answered episode cannot go on: its simulator was lost, or its time is up."""
        live, now = lane.live[place], asyncio.get_running_loop().time()
        live.episode.engine_s += now - live.asked_s
        if live.incarnation != lane.host.incarnation:
            self._lose(lane, place, WorkerError(f"{lane.host.simulator.name} was restarted"))
        elif live.start.timeout_s is not None and now - live.began_s > live.start.timeout_s:
            live.episode.status = Status.TRUNCATED
            self._finish(lane, place)
        return place not in lane.live

    def _goes_on(self, lane: _Lane, place: int, turn: Turn) -> bool:
        if lane.live[place].episode.status is None:
            return True
        self._finish(lane, place, is_lost=isinstance(turn.error, WorkerError))
        return False

    def _lose(self, lane: _Lane, place: int, error: InfraError) -> None:
        live = lane.live[place]
        live.episode.fail(error)
        self._finish(lane, place, is_lost=isinstance(error, WorkerError))

    def _finish(self, lane: _Lane, place: int, *, is_lost: bool = False) -> None:
        live = lane.live.pop(place)
        lane.idle.append(place)
        wall_s = asyncio.get_running_loop().time() - live.began_s
        trajectory = self.player.finished(live.episode, wall_s)
        failed = trajectory.status is Status.INFRA_ERROR
        self.counts.num_failed += failed
        self.counts.num_finished += not failed
        self.feed.done(Outcome(live.start.job, trajectory, is_lost))


async def _part_of(posted: Posted, positions: Sequence[int]) -> list[Sampled]:
    found = await posted.answer
    return [found[position] for position in positions]
