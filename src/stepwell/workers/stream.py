"""What an asynchronous rollout plays next, and what becomes of it: groups for updates, episodes for others.

    make_group(n) ─► jobs ─► Driver ─► outcomes ─► complete groups ─► keep ─► Stock ─► batch(update)
    play(jobs)    ─►──┘                  └─► refilled where the system failed

`Stream` is the `Feed` of a driver, and lives on its event loop: no threads, no clock of its own, so that a
loop whose time is made up (`modelled.py`) runs exactly this code.

Invariants
* A group is complete when each of its jobs has a trajectory that may be trained on; a job whose episode
  failed is played again, under its own seed. Failures of a worker say nothing about the job and are not
  counted against it; others are tried again `retries` times, then the run stops.
* `keep` has stored a group before an update can get it.
* A trainer that waits for nothing but the storing does not wait longer for it.
* Episodes for others (an evaluation) come first and need no room in the stock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from stepwell.core import EnvError, SamplingParams, Status, Trajectory
from stepwell.rollout.jobs import Job, Rolled
from stepwell.workers.driver import Driver, Outcome, Start
from stepwell.workers.staleness import PlayedGroup, Stock, Taken

Keep = Callable[[Sequence[Trajectory], Sequence[str]], Awaitable[None]]
"""Stores trajectories; the names are of groups that they complete."""

LINGER_S = 0.1
"""How long a finished trajectory waits for others to be stored with; one by one costs three times as much."""


@dataclass(slots=True, eq=False)
class _Filling:
    """A group, or a list of episodes somebody else waits for, as far as it was played."""

    jobs: Sequence[Job]
    params: SamplingParams
    timeout_s: float | None
    retries: int
    found: dict[int, Trajectory] = field(default_factory=dict)
    num_tries: dict[int, int] = field(default_factory=dict)
    num_retries: int = 0
    whole: asyncio.Future[None] | None = None  # of episodes that somebody waits for

    @property
    def is_whole(self) -> bool:
        return len(self.found) == len(self.jobs)


@dataclass(slots=True)
class StreamCounts:
    """Since the start."""

    num_dropped: int = 0  # groups that got too old
    num_over: int = 0  # groups learnt from although above the bound
    num_refilled: int = 0  # episodes played again because the system failed


@dataclass(eq=False)
class Stream:
    """Feeds a driver. `stock` and `make_group` may be set later: until then only `play` is served."""

    stock: Stock | None = None
    make_group: Callable[[int], Sequence[Job]] | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    timeout_s: float | None = None
    retries: int = 0
    keep: Keep | None = None
    next_number: int = 0
    counts: StreamCounts = field(default_factory=StreamCounts)
    _driver: Driver | None = None
    _starts: deque[tuple[_Filling, int]] = field(default_factory=deque)
    _open: dict[tuple[str, int], tuple[_Filling, int]] = field(default_factory=dict)
    _kept: asyncio.Queue[tuple[Trajectory, _Filling | None]] | None = None
    _failure: BaseException | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _num_unkept: int = 0  # groups that only want storing
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _is_closed: bool = False

    # --- the loop's side ------------------------------------------------------------------

    def start(self, driver: Driver) -> None:
        """Run the driver until `close`."""
        self._driver, self._kept = driver, asyncio.Queue()
        for work in (driver.run(), self._keeping()):
            task = asyncio.ensure_future(work)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
        self._changed.set()
        for filling, _ in self._open.values():
            if filling.whole is not None and not filling.whole.done():
                filling.whole.set_result(None)
        if self._driver is not None:
            self._driver.stop()

    async def batch(self) -> Taken:
        """The groups of the next update."""
        assert self.stock is not None and self._driver is not None
        dropped: list[PlayedGroup] = []
        while True:
            self._changed.clear()
            self._raise_failure()
            taken = self.stock.take()
            if taken is not None:
                dropped += taken.dropped
                self.counts.num_dropped += len(taken.dropped)
            if taken is not None and taken.groups:
                break
            self.stock.is_wanted = True
            self._hasten()
            self._driver.wake()
            await self._changed.wait()
        self.stock.is_wanted = False
        self.counts.num_over += taken.num_over
        self._driver.wake()  # there is room for more
        return Taken(taken.groups, dropped, taken.num_over)

    def published(self, version: int) -> None:
        """The generators have these weights now."""
        if self.stock is not None:
            self.stock.version = version
        if self._driver is not None:
            self._driver.wake()

    async def play(
        self, jobs: Sequence[Job], params: SamplingParams, *, retries: int = 0, timeout_s: float | None = None
    ) -> Rolled:
        """Every job once, and again where the system failed; before anything else."""
        assert self._driver is not None
        filling = _Filling(jobs, params, timeout_s, retries)
        if not jobs:
            return Rolled([])
        filling.whole = asyncio.get_running_loop().create_future()
        self._raise_failure()
        self._starts.extendleft((filling, i) for i in reversed(range(len(jobs))))
        self._driver.wake()
        await filling.whole
        self._raise_failure()
        rolled = Rolled([], num_retries=filling.num_retries)
        for i in range(len(jobs)):
            failed = filling.found[i].status is Status.INFRA_ERROR
            (rolled.failures if failed else rolled.trajectories).append(filling.found[i])
        return rolled

    async def close(self) -> None:
        """Begin nothing more, abandon what is under way, and store what is finished."""
        self._is_closed = True
        if self._driver is None or not self._tasks:
            return
        self._driver.stop()
        driving, keeping = self._tasks
        await asyncio.wait([driving], timeout=5.0)
        driving.cancel()
        assert self._kept is not None
        self._urgent.set()
        if not keeping.done():
            await self._kept.join()
        keeping.cancel()
        await asyncio.gather(driving, keeping, return_exceptions=True)
        self._tasks.clear()

    def refill(self, jobs: Sequence[Job], found: dict[int, Trajectory]) -> None:
        """Go on with a group of which some were played before."""
        assert self.stock is not None
        filling = _Filling(jobs, self.params, self.timeout_s, self.retries, found=dict(found))
        self.stock.begin()
        self._starts.extend((filling, i) for i in range(len(jobs)) if i not in found)

    # --- the driver's side ----------------------------------------------------------------

    def next(self) -> Start | None:
        if self._is_closed:
            return None
        if not self._starts and self.stock is not None and self.make_group is not None:
            if not self.stock.may_begin():
                return None
            filling = _Filling(self.make_group(self.next_number), self.params, self.timeout_s, self.retries)
            self.next_number += 1
            self.stock.begin()
            self._starts.extend((filling, i) for i in range(len(filling.jobs)))
        if not self._starts:
            return None
        filling, number = self._starts.popleft()
        job = filling.jobs[number]
        assert _key(job) not in self._open, f"{job.group}: an episode is under way already"
        self._open[_key(job)] = filling, number
        return Start(job, filling.params, filling.timeout_s)

    def done(self, outcome: Outcome) -> None:
        filling, number = self._open.pop(_key(outcome.job))
        trajectory = outcome.trajectory
        if trajectory.status is Status.INFRA_ERROR:
            self.counts.num_refilled += 1
            tries = filling.num_tries[number] = filling.num_tries.get(number, 0) + (not outcome.is_lost)
            if tries <= filling.retries:
                filling.num_retries += 1
                self._starts.appendleft((filling, number))
                self._store(trajectory, None, filling)
                assert self._driver is not None
                self._driver.wake()
                return
        filling.found[number] = trajectory
        if filling.whole is not None:
            if filling.is_whole and not filling.whole.done():
                filling.whole.set_result(None)
        elif trajectory.status is Status.INFRA_ERROR:
            self._store(trajectory, None, filling)
            self._fail(
                EnvError(
                    f"an episode of {trajectory.group} failed, also after {filling.retries} more tries "
                    f"(train.max_env_retries): {trajectory.error}. What was played is kept; fix the world, "
                    "then --resume"
                )
            )
        else:
            self._store(trajectory, filling if filling.is_whole else None, filling)

    def _store(self, trajectory: Trajectory, completed: _Filling | None, filling: _Filling) -> None:
        if filling.whole is not None:  # whoever waits for it keeps it
            return
        if self.keep is None:
            if completed is not None:
                self._complete(completed)
        else:
            assert self._kept is not None
            self._kept.put_nowait((trajectory, completed))
            self._num_unkept += completed is not None
            self._hasten()

    def _hasten(self) -> None:
        """Store at once what the trainer waits for, where it is all that is missing."""
        stock = self.stock
        if stock is None or not stock.is_wanted:
            return
        if len(stock.ready) + self._num_unkept >= stock.groups_per_update:
            self._urgent.set()

    async def _keeping(self) -> None:
        """Store whatever has been finished meanwhile, many at a time."""
        assert self._kept is not None
        while True:
            items = [await self._kept.get()]
            if not self._is_closed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), LINGER_S)
                self._urgent.clear()
            while not self._kept.empty():
                items.append(self._kept.get_nowait())
            completed = [filling for _, filling in items if filling is not None]
            assert self.keep is not None
            await self.keep([t for t, _ in items], [filling.jobs[0].group for filling in completed])
            self._num_unkept -= len(completed)
            for filling in completed:
                self._complete(filling)
            for _ in items:
                self._kept.task_done()

    def _complete(self, filling: _Filling) -> None:
        assert self.stock is not None
        members = [filling.found[i] for i in range(len(filling.jobs))]
        self.stock.add(PlayedGroup.of(filling.jobs[0].group, members, self.stock.version))
        self._changed.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def _key(job: Job) -> tuple[str, int]:
    return f"{job.channel}\0{job.group}", job.seed
