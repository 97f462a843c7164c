"""Devices that several workers share, in virtual time.

Work occupies a share of one or more resources: of an accelerator, of a machine's cores, of the controlling
process. While all of it fits, everything runs at full speed. When more is asked of a resource than it has,
all work on it slows down in proportion (a GPU slices its time, an operating system its cores). Work runs at
the speed of its slowest resource.

A resource that turns from one kind of work to another takes `switch_s`: caches and queues are filled again.
It is added to the work that caused the turn.

Invariant: with one worker per resource, work takes exactly the time that was asked for.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_TINY = 1e-12


@dataclass(slots=True, eq=False)
class _Resource:
    capacity: float
    switch_s: float = 0.0
    background: float = 0.0  # what others ask of it all the time
    last_kind: str = ""
    asked: float = 0.0  # by running work
    num_running: int = 0
    speed: float = 1.0  # of all work on it: 1 while everything fits
    lines: list[_Line] = field(default_factory=list)  # all that ever used it

    def change_load(self, load: float, num_jobs: int) -> bool:
        """Count work that begins, or (negative) that ends; whether the speed changed."""
        self.num_running += num_jobs
        self.asked = self.asked + load if self.num_running else 0.0  # no rounding stays
        asked, before = self.asked + self.background, self.speed
        self.speed = 1.0 if asked <= self.capacity * (1 + 1e-9) else self.capacity / asked
        return self.speed != before


@dataclass(slots=True, eq=False)
class _RunningJob:
    end_s: float  # on the clock of its line
    number: int
    loads: dict[_Resource, float]
    done: asyncio.Future[None]

    def __lt__(self, other: _RunningJob) -> bool:
        return (self.end_s, self.number) < (other.end_s, other.number)


@dataclass(slots=True, eq=False)
class _Line:
    """All work on the same resources: it has one speed, so one clock that slows down with it."""

    resources: tuple[_Resource, ...]
    jobs: list[_RunningJob] = field(default_factory=list)  # a heap; those that were cancelled stay in it
    clock_s: float = 0.0
    since_s: float = 0.0
    speed: float = 1.0
    timer: asyncio.TimerHandle | None = None

    def move_clock(self, now: float) -> None:
        """Advance its clock to this time, at its present speed."""
        self.clock_s += (now - self.since_s) * self.speed
        self.since_s = now


class SharedDevices:
    """All resources of a modelled cluster. Lives on one event loop."""

    def __init__(self) -> None:
        self._resources: dict[str, _Resource] = {}
        self._lines: dict[tuple[str, ...], _Line] = {}
        self._num_jobs = 0

    def add_device(
        self, name: str, capacity: float = 1.0, switch_s: float = 0.0, background: float = 0.0
    ) -> None:
        """Add a resource; an existing one is not changed. `background`: others use it too."""
        self._resources.setdefault(name, _Resource(capacity, switch_s, background))

    async def work(self, seconds: float, kind: str, loads: Mapping[str, float]) -> None:
        """Work of this many seconds at full speed; `loads` is what it occupies of which resource."""
        names = tuple(name for name, load in loads.items() if load > 0)
        line = self._lines.get(names) or self._add_line(names)
        for resource in line.resources:
            if resource.switch_s and resource.last_kind not in ("", kind):
                seconds += resource.switch_s
            resource.last_kind = kind
        if not names or seconds <= 0:
            await asyncio.sleep(max(seconds, 0.0))
            return
        loop = asyncio.get_running_loop()
        line.move_clock(loop.time())
        self._num_jobs += 1
        used = {self._resources[name]: loads[name] for name in names}
        job = _RunningJob(line.clock_s + seconds, self._num_jobs, used, loop.create_future())
        heapq.heappush(line.jobs, job)
        self._adjust_speeds(line, [res for res, load in used.items() if res.change_load(load, 1)])
        try:
            await job.done
        except asyncio.CancelledError:
            if job.done.cancelled():
                self._adjust_speeds(line, _end_job(job))
            raise

    def _add_line(self, names: tuple[str, ...]) -> _Line:
        line = self._lines[names] = _Line(tuple(self._resources[name] for name in names))
        for resource in line.resources:
            resource.lines.append(line)
        return line

    def _adjust_speeds(self, used: _Line, changed: Iterable[_Resource]) -> None:
        """Set the speed of all work on changed resources, and the timer of what ends earlier than before."""
        now = asyncio.get_running_loop().time()
        lines = {line: None for resource in changed for line in resource.lines}
        lines[used] = None
        for line in lines:
            if line.jobs:
                speed = min([resource.speed for resource in line.resources])
                if speed != line.speed:
                    line.move_clock(now)
                    line.speed = speed
                elif line is not used:
                    continue
                self._set_timer(line, now)

    def _set_timer(self, line: _Line, now: float) -> None:
        """Wake up when the next work of a line may end. A timer that is too early is set again then."""
        end_s = line.since_s + (line.jobs[0].end_s - line.clock_s) / line.speed
        if line.timer is not None:
            if line.timer.when() <= end_s + _TINY:
                return
            line.timer.cancel()
        line.timer = asyncio.get_running_loop().call_at(max(end_s, now), self._finish_due, line)

    def _finish_due(self, line: _Line) -> None:
        """End what is done on a line, and look again when the next may be."""
        now = asyncio.get_running_loop().time()
        line.timer = None
        line.move_clock(now)
        limit_s = line.clock_s + _TINY * max(1.0, now)
        changed: dict[_Resource, None] = {}
        while line.jobs and (line.jobs[0].done.done() or line.jobs[0].end_s <= limit_s):
            job = heapq.heappop(line.jobs)
            if not job.done.done():
                job.done.set_result(None)
                changed |= dict.fromkeys(_end_job(job))
        self._adjust_speeds(line, changed)


def _end_job(job: _RunningJob) -> list[_Resource]:
    """Give back what it occupied; the resources that are faster now."""
    return [resource for resource, load in job.loads.items() if resource.change_load(-load, -1)]
