"""A worker process that is restarted when it dies or hangs.

    call ─► _alive ─► Life.call ─► answer
              ▲
              └── _started: a new process, `on_start` ◄── _revive ◄── Life.lose ◄── its end, _watch

Every call under way in a process that dies, hangs (see `marks.py`) or exceeds its own `timeout_s` raises
`WorkerError`; calls made meanwhile wait for the next process. Restarts follow each other at growing
distances, and end after `max_restarts`. A process that was told something wrong (an option that is not
there, a missing model) is not tried again: that error is raised by every call.

Invariants
* At most one process of a worker exists at any time.
* A new process is handed to callers only after `on_start` has put it into the state they expect.
* After `close`, nothing of it is left; if this process dies in any way, the kernel ends the worker.

Everything happens on the event loop of the first call.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from stepwell.core import JSON, StepwellError, WorkerError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame
from stepwell.workers.child_process import Life
from stepwell.workers.contracts import WorkerHealth

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MAX_FAILED_STARTS = 3
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.02, 10.0
_CLOSE_S = 2.0
OnStart = Callable[[Life], Awaitable[None]]


class WorkerProcess:
    """A process of `kind` ("simulator" or "generator"), built from JSON settings.

    It is started by the first call, or by `start`. `environment` adds environment variables, such as
    CUDA_VISIBLE_DEVICES. `num_threads` of None leaves the choice to the libraries.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        settings: Mapping[str, JSON],
        *,
        num_threads: int | None = 1,
        environment: Mapping[str, str] | None = None,
        heartbeat_s: float = 5.0,
        hang_s: float = 60.0,
        start_timeout_s: float = 600.0,
        max_restarts: int = 100,
        on_start: OnStart | None = None,
    ) -> None:
        self.name = name
        self.num_restarts = 0
        paths = [path or os.getcwd() for path in sys.path]
        self._frame = Frame(kind, {"settings": dict(settings), "path": paths})
        threads = dict.fromkeys(THREAD_VARIABLES, str(num_threads)) if num_threads else {}
        self._environment = {**os.environ, **threads, **(environment or {})}
        self._heartbeat_s, self._hang_s = min(heartbeat_s, hang_s / 4), hang_s
        self._start_timeout_s, self._max_restarts = start_timeout_s, max_restarts
        self._on_start = on_start
        self._life: Life | None = None
        self._starting: asyncio.Task[Life] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._num_started = self._num_failed = 0
        self._is_closed = False

    # --- calls ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start it now and wait until it is ready."""
        await self._alive()

    async def call(
        self,
        op: str,
        header: dict[str, Any],
        arrays: Sequence[AnyArray] = (),
        *,
        timeout_s: float | None = None,
    ) -> Frame:
        """The worker's answer; `start` in its header says which start of the process gave it.

        One that takes longer than `timeout_s` costs the worker its life.
        """
        starting, life = self._starting, self._life
        if life is None or life.is_over or starting is None or not starting.done():
            life = await self._alive()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await life.call(Frame(op, header, arrays))
        except TimeoutError:
            why = f"took longer than {timeout_s:g} s for {op}"
            life.lose(why)
            raise WorkerError(f"worker {self.name} {why}") from None
        self._num_failed = 0
        answer.header["start"] = life.number
        return answer

    def health(self) -> WorkerHealth:
        """How it is now."""
        life = self._life
        if life is None or life.is_over:
            return WorkerHealth(self.name, None, 0.0, self.num_restarts, False, 0.0)
        marks = life.marks
        silent_s = marks.silent_s if marks.memory_mb else 0.0
        return WorkerHealth(self.name, life.pid, marks.memory_mb, self.num_restarts, True, silent_s)

    async def close(self) -> None:
        """End it: it is asked first, then killed. Calls under way raise `WorkerError`."""
        self._is_closed = True
        for task in (self._watching, self._starting):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        if self._life is not None:
            await self._life.end(grace_s=_CLOSE_S)
        self._life = None

    # --- lives ----------------------------------------------------------------------------

    async def _alive(self) -> Life:
        if self._is_closed:
            raise WorkerError(f"worker {self.name} is closed")
        if self._starting is None:
            self._begin(self._started())
            self._watching = asyncio.create_task(self._watch(), name=f"watch {self.name}")
        assert self._starting is not None
        if self._starting.done() and not self._starting.cancelled():
            error = self._starting.exception()
            if isinstance(error, StepwellError):
                raise type(error)(*error.args)  # one that is raised again and again grows
            return self._starting.result()
        try:
            return await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._is_closed:
                raise WorkerError(f"worker {self.name} is closed") from None
            raise

    def _revive(self, life: Life) -> None:
        """After a process that served: the next one. One that is lost before is `_start_once`'s matter."""
        is_serving = life is self._life and self._starting is not None and self._starting.done()
        if is_serving and not self._is_closed:
            self._begin(self._started(life))

    def _begin(self, starting: Coroutine[Any, Any, Life]) -> None:
        self._starting = asyncio.create_task(starting, name=f"start {self.name}")
        self._starting.add_done_callback(_look_at)

    async def _started(self, last: Life | None = None) -> Life:
        """A process that is ready; after one that ended, in its own time."""
        error, num_failed_starts = None if last is None else await last.end(), 0
        while True:
            if error is not None:
                if self.num_restarts >= self._max_restarts:
                    raise WorkerError(f"{error}\nIt was restarted {self.num_restarts} times: no more of that")
                self.num_restarts += 1
                await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 4.0 ** min(self._num_failed, 9)))
                self._num_failed += 1
            try:
                return await self._start_once()
            except WorkerError as failed:
                error = failed
                if self._life is None or not self._life.was_killed:  # which is no fault of what is started
                    num_failed_starts += 1
                if num_failed_starts >= MAX_FAILED_STARTS:
                    raise WorkerError(f"{failed}\nIt failed {num_failed_starts} times to start") from failed

    async def _start_once(self) -> Life:
        self._num_started += 1
        try:
            life = self._life = Life(
                self.name,
                self._num_started,
                environment=self._environment,
                heartbeat_s=self._heartbeat_s,
                on_lost=self._revive,
            )
        except OSError as error:
            raise WorkerError(f"worker {self.name} cannot be started: {error}") from error
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await life.call(self._frame)
                if self._on_start is not None:
                    await self._on_start(life)
        except TimeoutError:
            raise await life.end(f"was not ready within {self._start_timeout_s:g} s") from None
        except StepwellError as error:
            ended = await life.end(f"could not be built: {error}")
            raise error if isinstance(error, ValueError) else ended from error
        if life.is_over:
            raise await life.end()
        return life

    async def _watch(self) -> None:
        """Look at the marks; a process that is being built may be silent for as long as that takes."""
        while True:
            await asyncio.sleep(min(self._heartbeat_s, 1.0))
            life, starting = self._life, self._starting
            if life is None or life.is_over or starting is None or not starting.done():
                continue
            trouble = life.trouble(self._hang_s)
            if trouble is not None:
                life.lose(trouble)


def _look_at(task: asyncio.Task[Life]) -> None:
    """Mark a failure as seen: whoever calls next will hear of it, and asyncio need not complain."""
    if not task.cancelled():
        task.exception()
