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
from collections.abc import Mapping
from dataclasses import dataclass, field

_TINY = 1e-12


@dataclass(slots=True, eq=False)
class _Resource:
    capacity: float
    switch_s: float = 0.0
    background: float = 0.0  # what others ask of it all the time
    last_kind: str = ""
    jobs: dict[_RunningJob, float] = field(default_factory=dict)  # its load here

    def compute_speed(self) -> float:
        """The speed of all work on it: 1 while everything fits."""
        asked = sum(self.jobs.values()) + self.background
        return 1.0 if asked <= self.capacity * (1 + 1e-9) else self.capacity / asked


@dataclass(slots=True, eq=False)
class _RunningJob:
    left_s: float
    resources: list[_Resource]
    done: asyncio.Future[None]
    since_s: float
    speed: float = 0.0
    timer: asyncio.TimerHandle | None = None


class SharedDevices:
    """All resources of a modelled cluster. Lives on one event loop."""

    def __init__(self) -> None:
        self._resources: dict[str, _Resource] = {}

    def add_device(
        self, name: str, capacity: float = 1.0, switch_s: float = 0.0, background: float = 0.0
    ) -> None:
        """Add a resource; an existing one is not changed. `background`: others use it too."""
        self._resources.setdefault(name, _Resource(capacity, switch_s, background))

    async def work(self, seconds: float, kind: str, loads: Mapping[str, float]) -> None:
        """Work of this many seconds at full speed; `loads` is what it occupies of which resource."""
        used = {self._resources[name]: load for name, load in loads.items() if load > 0}
        for resource in used:
            if resource.switch_s and resource.last_kind not in ("", kind):
                seconds += resource.switch_s
            resource.last_kind = kind
        if not used or seconds <= 0:
            await asyncio.sleep(max(seconds, 0.0))
            return
        loop = asyncio.get_running_loop()
        job = _RunningJob(seconds, list(used), loop.create_future(), loop.time())
        for resource, load in used.items():
            resource.jobs[job] = load
        self._adjust_speeds(job.resources)
        try:
            await job.done
        finally:
            if job.timer is not None:
                job.timer.cancel()
            for resource in job.resources:
                del resource.jobs[job]
            self._adjust_speeds(job.resources)

    def _adjust_speeds(self, changed: list[_Resource]) -> None:
        """Set the speed of all work on these resources, and the timer of what has a new one."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for job in {job: None for resource in changed for job in resource.jobs}:
            speed = min(resource.compute_speed() for resource in job.resources)
            if abs(speed - job.speed) <= _TINY:
                continue
            job.left_s = max(0.0, job.left_s - (now - job.since_s) * job.speed)
            job.since_s, job.speed = now, speed
            if job.timer is not None:
                job.timer.cancel()
            job.timer = loop.call_at(now + job.left_s / speed, _finish_job, job)


def _finish_job(job: _RunningJob) -> None:
    if not job.done.done():
        job.done.set_result(None)
