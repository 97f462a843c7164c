"""What an asynchronous rollout plays next, and where the results go.

    make_group(n)   ─► jobs ─► Driver ─► results ─► complete groups ─► store ─► GroupBuffer ─► take_batch
    play_jobs(jobs) ─►──┘                  └─► played again if the system failed

`GroupStream` is the `EpisodeFeed` of a driver and lives on its event loop. It has no threads and no clock, so
that a loop with virtual time (`modelled.py`) runs exactly this code.

Invariants
* A group is complete when each of its jobs has a trajectory that may be trained on. A failed episode is
  played again, with the same seed. Failures of a worker do not count against the job; after `retries` other
  failures the run stops.
* `store` has stored a group before an update can get it.
* A trainer that only waits for storing does not wait longer than that takes.
* Episodes of `play_jobs` (an evaluation) come first and need no room in the buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stepwell.core import EnvError, SamplingParams, Status, Trajectory
from stepwell.rollout.jobs import Job, RolloutResult
from stepwell.workers.driver import EpisodeCounts, PlannedEpisode, PlayedEpisode
from stepwell.workers.staleness import GroupBuffer, PlayedGroup, TakenGroups

StoreTrajectories = Callable[[Sequence[Trajectory], Sequence[str]], Awaitable[None]]
"""Stores trajectories. The names are those of the groups that they complete."""

LINGER_S = 0.1
"""How long a finished trajectory waits for others; storing one by one costs three times as much."""


class EpisodeDriver(Protocol):
    """Who plays the episodes of a feed: `Driver` in simulators, `AgentDriver` with a user's own agent."""

    counts: EpisodeCounts

    @property
    def num_live(self) -> int:
        """Running episodes."""

    @property
    def num_places(self) -> int:
        """Episodes that can run at once."""

    async def run(self) -> None:
        """Play until `stop`."""

    def wake(self) -> None:
        """Ask the feed again for episodes."""

    def stop(self) -> None:
        """Begin no more episodes, and let `run` return."""


@dataclass(slots=True, eq=False)
class _OpenGroup:
    """A group that is being played, or a list of episodes that `play_jobs` waits for."""

    jobs: Sequence[Job]
    params: SamplingParams
    timeout_s: float | None
    retries: int
    found: dict[int, Trajectory] = field(default_factory=dict)
    num_tries: dict[int, int] = field(default_factory=dict)
    num_retries: int = 0
    completion: asyncio.Future[None] | None = None  # set for episodes that `play_jobs` waits for

    @property
    def is_complete(self) -> bool:
        return len(self.found) == len(self.jobs)


@dataclass(slots=True)
class StreamCounts:
    """Numbers since the start."""

    num_dropped: int = 0  # groups that became too old
    num_over: int = 0  # groups trained on although too old
    num_refilled: int = 0  # episodes played again because the system failed


@dataclass(eq=False)
class GroupStream:
    """Feeds a driver. `buffer` and `make_group` may be set later; until then only `play_jobs` works."""

    buffer: GroupBuffer | None = None
    make_group: Callable[[int], Sequence[Job]] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    timeout_s: float | None = None
    retries: int = 0
    store: StoreTrajectories | None = None
    next_number: int = 0
    counts: StreamCounts = field(default_factory=StreamCounts)
    _driver: EpisodeDriver | None = None
    _starts: deque[tuple[_OpenGroup, int]] = field(default_factory=deque)
    _open: dict[tuple[str, int], tuple[_OpenGroup, int]] = field(default_factory=dict)
    _to_store: asyncio.Queue[tuple[Trajectory, _OpenGroup | None]] | None = None
    _failure: BaseException | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _num_unstored: int = 0  # groups that only need to be stored
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _is_closed: bool = False

    # --- called by the training loop -------------------------------------------------------

    def start(self, driver: EpisodeDriver) -> None:
        """Run the driver until `close`."""
        self._driver, self._to_store = driver, asyncio.Queue()
        for work in (driver.run(), self._store_finished()):
            task = asyncio.ensure_future(work)
            self.watch_task(task)
            self._tasks.append(task)

    def watch_task(self, task: asyncio.Task[None]) -> None:
        """End the run with the error of this task, should it have one."""
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail_run(task.exception())

    def _fail_run(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
        self._changed.set()
        for open_group, _ in self._open.values():
            if open_group.completion is not None and not open_group.completion.done():
                open_group.completion.set_result(None)
        if self._driver is not None:
            self._driver.stop()

    async def take_batch(self) -> TakenGroups:
        """The groups of the next update."""
        assert self.buffer is not None and self._driver is not None
        dropped: list[PlayedGroup] = []
        while True:
            self._changed.clear()
            self._raise_failure()
            taken = self.buffer.take_groups()
            if taken is not None:
                dropped += taken.dropped
                self.counts.num_dropped += len(taken.dropped)
            if taken is not None and taken.groups:
                break
            self.buffer.is_wanted = True
            self._store_soon()
            self._driver.wake()
            await self._changed.wait()
        self.buffer.is_wanted = False
        self.counts.num_over += taken.num_over
        self._driver.wake()  # there is room for more groups
        return TakenGroups(taken.groups, dropped, taken.num_over)

    def note_published(self, version: int) -> None:
        """Note that the generators have these weights now."""
        if self.buffer is not None:
            self.buffer.version = version
        if self._driver is not None:
            self._driver.wake()

    async def play_jobs(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> RolloutResult:
        """Play every job once, and again if the system failed, before anything else."""
        assert self._driver is not None
        open_group = _OpenGroup(jobs, params, timeout_s, retries)
        if not jobs:
            return RolloutResult([])
        open_group.completion = asyncio.get_running_loop().create_future()
        self._raise_failure()
        self._starts.extendleft((open_group, i) for i in reversed(range(len(jobs))))
        self._driver.wake()
        await open_group.completion
        self._raise_failure()
        rolled = RolloutResult([], num_retries=open_group.num_retries)
        for i in range(len(jobs)):
            failed = open_group.found[i].status is Status.INFRA_ERROR
            (rolled.failures if failed else rolled.trajectories).append(open_group.found[i])
        return rolled

    async def close(self) -> None:
        """Begin nothing more, abandon what still runs, and store what is finished."""
        self._is_closed = True
        if self._driver is None or not self._tasks:
            return
        self._driver.stop()
        driving, keeping = self._tasks
        await asyncio.wait([driving], timeout=5.0)
        driving.cancel()
        assert self._to_store is not None
        self._urgent.set()
        if not keeping.done():
            await self._to_store.join()
        keeping.cancel()
        await asyncio.gather(driving, keeping, return_exceptions=True)
        self._tasks.clear()

    def resume_group(self, jobs: Sequence[Job], found: dict[int, Trajectory]) -> None:
        """Continue a group of which some episodes were played before."""
        assert self.buffer is not None
        open_group = _OpenGroup(jobs, self.params, self.timeout_s, self.retries, found=dict(found))
        self.buffer.begin_group()
        self._starts.extend((open_group, i) for i in range(len(jobs)) if i not in found)

    # --- called by the driver --------------------------------------------------------------

    def take_next(self) -> PlannedEpisode | None:
        """The next episode; `play_jobs` comes first, then a new group if the buffer has room."""
        if self._is_closed:
            return None
        if not self._starts and self.buffer is not None and self.make_group is not None:
            if not self.buffer.may_begin():
                return None
            open_group = _OpenGroup(
                self.make_group(self.next_number), self.params, self.timeout_s, self.retries
            )
            self.next_number += 1
            self.buffer.begin_group()
            self._starts.extend((open_group, i) for i in range(len(open_group.jobs)))
        if not self._starts:
            return None
        open_group, number = self._starts.popleft()
        job = open_group.jobs[number]
        assert _get_job_key(job) not in self._open, f"{job.group}: this episode is running already"
        self._open[_get_job_key(job)] = open_group, number
        return PlannedEpisode(job, open_group.params, open_group.timeout_s, len(open_group.jobs))

    def note_retry(self, job: Job) -> None:
        """Note that the driver plays an episode again by itself, because the system failed."""
        open_group, _ = self._open[_get_job_key(job)]
        open_group.num_retries += 1
        self.counts.num_refilled += 1

    def report(self, played: PlayedEpisode) -> None:
        """Take a result: keep it, or play the episode again."""
        open_group, number = self._open.pop(_get_job_key(played.job))
        trajectory = played.trajectory
        if trajectory.status is Status.INFRA_ERROR:
            self.counts.num_refilled += 1
            num_new = 0 if played.is_lost else played.num_tries
            tries = open_group.num_tries[number] = open_group.num_tries.get(number, 0) + num_new
            if tries <= open_group.retries:
                open_group.num_retries += 1
                self._starts.appendleft((open_group, number))
                self._store_trajectory(trajectory, None, open_group)
                assert self._driver is not None
                self._driver.wake()
                return
        open_group.found[number] = trajectory
        if open_group.completion is not None:
            if open_group.is_complete and not open_group.completion.done():
                open_group.completion.set_result(None)
        elif trajectory.status is Status.INFRA_ERROR:
            self._store_trajectory(trajectory, None, open_group)
            self._fail_run(
                EnvError(
                    f"an episode of {trajectory.group} failed, also after {open_group.retries} retries "
                    f"(train.max_env_retries): {trajectory.error}. Finished episodes are stored; fix the "
                    "environment, then use --resume"
                )
            )
        else:
            self._store_trajectory(trajectory, open_group if open_group.is_complete else None, open_group)

    def _store_trajectory(
        self, trajectory: Trajectory, completed: _OpenGroup | None, open_group: _OpenGroup
    ) -> None:
        if open_group.completion is not None:  # `play_jobs` returns it
            return
        if self.store is None:
            if completed is not None:
                self._complete_group(completed)
        else:
            assert self._to_store is not None
            self._to_store.put_nowait((trajectory, completed))
            self._num_unstored += completed is not None
            self._store_soon()

    def _store_soon(self) -> None:
        """Store at once if storing is all that the trainer waits for."""
        buffer = self.buffer
        if buffer is None or not buffer.is_wanted:
            return
        if len(buffer.ready) + self._num_unstored >= buffer.groups_per_update:
            self._urgent.set()

    async def _store_finished(self) -> None:
        """Store finished trajectories, many at a time."""
        assert self._to_store is not None
        while True:
            items = [await self._to_store.get()]
            if not self._is_closed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), LINGER_S)
                self._urgent.clear()
            while not self._to_store.empty():
                items.append(self._to_store.get_nowait())
            completed = [open_group for _, open_group in items if open_group is not None]
            assert self.store is not None
            await self.store([t for t, _ in items], [open_group.jobs[0].group for open_group in completed])
            self._num_unstored -= len(completed)
            for open_group in completed:
                self._complete_group(open_group)
            for _ in items:
                self._to_store.task_done()

    def _complete_group(self, open_group: _OpenGroup) -> None:
        assert self.buffer is not None
        members = [open_group.found[i] for i in range(len(open_group.jobs))]
        self.buffer.add_group(
            PlayedGroup.from_trajectories(open_group.jobs[0].group, members, self.buffer.version)
        )
        self._changed.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _get_job_key(job: Job) -> tuple[str, int]:
    return f"{job.channel}\0{job.group}", job.seed
