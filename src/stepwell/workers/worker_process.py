"""A worker process that is restarted when it dies or hangs.

    call ─► _get_ready ─► WorkerLink.call ─► answer
              ▲
              └── _start_ready: Launcher, `on_start` ◄── _replace ◄── its end, _watch

The process is one of this machine, unless a `launcher` starts it elsewhere: as an actor of a Ray cluster
(`ray_link.py`), or on a machine that serves workers (`http_link.py`). What follows holds for all of them.

Every pending call of a process that dies, hangs (`heartbeat.py`) or exceeds its own `timeout_s` raises
`WorkerError`. New calls wait for the next process. Restarts follow each other at growing intervals and stop
after `max_restarts`. A process that got wrong settings (an unknown option, a missing model) is not tried
again: every call raises that error.

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
from stepwell.core.child_process import limit_threads
from stepwell.core.fork_server import MODEL_MODULES
from stepwell.core.frames import Frame
from stepwell.workers.contracts import Launcher, WorkerHealth, WorkerLink
from stepwell.workers.worker_connection import ProcessLauncher

SIMULATOR_MODULES = ("numpy", "stepwell.workers.hosts", "stepwell.workers.shared_link")
MAX_FAILED_STARTS = 3
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.02, 10.0
_CLOSE_S = 2.0
OnStart = Callable[[WorkerLink], Awaitable[None]]


class WorkerProcess:
    """A process of `kind` ("simulator" or "generator"), built from JSON settings.

    The first call starts it, or `start`. `environment` adds environment variables, such as
    CUDA_VISIBLE_DEVICES. If `num_threads` is None, the libraries choose. A `launcher` starts it elsewhere and
    has its own view of both.
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
        launcher: Launcher | None = None,
    ) -> None:
        self.name = name
        self.num_restarts, self._last_end = 0, ""
        paths = [path or os.getcwd() for path in sys.path]
        self._frame = Frame(kind, {"settings": dict(settings), "path": paths})
        self._heartbeat_s, self._hang_s = min(heartbeat_s, hang_s / 4), hang_s
        if launcher is None:
            threads = limit_threads(num_threads) if num_threads else {}
            variables = {**os.environ, **threads, **(environment or {})}
            imports = MODEL_MODULES if kind == "generator" else SIMULATOR_MODULES
            launcher = ProcessLauncher(variables, imports, self._heartbeat_s)
        self._launcher = launcher
        self._start_timeout_s, self._max_restarts = start_timeout_s, max_restarts
        self._on_start = on_start
        self._connection: WorkerLink | None = None
        self._starting: asyncio.Task[WorkerLink] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._num_started = self._num_failed = 0
        self._is_closed = False

    # --- calls ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start it now and wait until it is ready."""
        await self._get_ready()

    async def call(
        self,
        op: str,
        header: dict[str, Any],
        arrays: Sequence[AnyArray] = (),
        *,
        timeout_s: float | None = None,
    ) -> Frame:
        """The worker's answer. `start` in its header is the number of the process that gave it.

        A worker that takes longer than `timeout_s` is restarted.
        """
        starting, connection = self._starting, self._connection
        if connection is None or connection.is_over or starting is None or not starting.done():
            connection = await self._get_ready()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await connection.call(Frame(op, header, arrays))
        except TimeoutError:
            why = f"took longer than {timeout_s:g} s for {op}"
            connection.give_up(why)
            raise WorkerError(f"worker {self.name} {why}") from None
        self._num_failed = 0
        answer.header["start"] = connection.number
        return answer

    def read_health(self) -> WorkerHealth:
        """Its present state. While a process is being built, its pid is known and it is not alive yet."""
        connection, starting = self._connection, self._starting
        if connection is None or connection.is_over:
            return WorkerHealth(self.name, None, 0.0, self.num_restarts, False, 0.0, self._last_end)
        pid, memory_mb, silent_s = connection.read_state()
        is_ready = starting is not None and starting.done()
        return WorkerHealth(self.name, pid, memory_mb, self.num_restarts, is_ready, silent_s, self._last_end)

    async def close(self) -> None:
        """End it: first by closing its link, then by force. Pending calls raise `WorkerError`."""
        self._is_closed = True
        for task in (self._watching, self._starting):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        if self._connection is not None:
            await self._connection.end(grace_s=_CLOSE_S)
        self._connection = None

    # --- processes ------------------------------------------------------------------------

    async def _get_ready(self) -> WorkerLink:
        if self._is_closed:
            raise WorkerError(f"worker {self.name} is closed")
        if self._starting is None:
            self._launch(self._start_ready())
            self._watching = asyncio.create_task(self._watch(), name=f"watch {self.name}")
        assert self._starting is not None
        if self._starting.done() and not self._starting.cancelled():
            error = self._starting.exception()
            if isinstance(error, StepwellError):
                raise type(error)(*error.args)  # raising one object repeatedly would grow its traceback
            return self._starting.result()
        try:
            return await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._is_closed:
                raise WorkerError(f"worker {self.name} is closed") from None
            raise

    def _replace(self, connection: WorkerLink) -> None:
        """Start the next process after one that served. `_start_once` handles failures before that."""
        is_serving = connection is self._connection and self._starting is not None and self._starting.done()
        if is_serving and not self._is_closed:
            self._launch(self._start_ready(connection))

    def _launch(self, starting: Coroutine[Any, Any, WorkerLink]) -> None:
        self._starting = asyncio.create_task(starting, name=f"start {self.name}")
        self._starting.add_done_callback(_mark_as_seen)

    async def _start_ready(self, last: WorkerLink | None = None) -> WorkerLink:
        """A process that is ready, started after a pause if another one ended before."""
        error, num_failed_starts = None if last is None else await last.end(), 0
        while True:
            if error is not None:
                if self.num_restarts >= self._max_restarts:
                    raise WorkerError(
                        f"{error}\nGiving up after {self.num_restarts} restarts (workers.max_restarts)"
                    )
                self.num_restarts, self._last_end = self.num_restarts + 1, str(error)
                await asyncio.sleep(min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 4.0 ** min(self._num_failed, 9)))
                self._num_failed += 1
            try:
                return await self._start_once()
            except WorkerError as failed:
                error = failed
                if self._connection is None or not self._connection.was_ended_by_others():
                    num_failed_starts += 1  # otherwise the failure is not its own
                if num_failed_starts >= MAX_FAILED_STARTS:
                    raise WorkerError(
                        f"{failed}\nGiving up: it failed to start {num_failed_starts} times"
                    ) from failed

    async def _start_once(self) -> WorkerLink:
        self._num_started += 1
        connection = self._connection = await self._launcher.launch_worker(
            self.name, self._num_started, self._replace
        )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await connection.call(self._frame)
                if self._on_start is not None:
                    await self._on_start(connection)
        except TimeoutError:
            raise await connection.end(f"was not ready within {self._start_timeout_s:g} s") from None
        except StepwellError as error:
            ended = await connection.end(f"could not be built: {error}")
            raise error if isinstance(error, ValueError) else ended from error
        if connection.is_over:
            raise await connection.end()
        return connection

    async def _watch(self) -> None:
        """End a process that hangs. While it is being built it may be silent."""
        while True:
            await asyncio.sleep(min(self._heartbeat_s, 1.0))
            connection, starting = self._connection, self._starting
            if connection is None or connection.is_over or starting is None or not starting.done():
                continue
            trouble = connection.find_trouble(self._hang_s)
            if trouble is not None:
                connection.give_up(trouble)


def _mark_as_seen(task: asyncio.Task[WorkerLink]) -> None:
    """Mark a failure as seen, so that asyncio does not log it. The next call raises it."""
    if not task.cancelled():
        task.exception()
