"""One started worker process as its parent sees it: calls out, answers in, and its end.

`core/child_process.py` starts and ends the process. This module adds what only workers have: calls over a
link in shared memory, and a page on which the process shows its heartbeat. `worker_process.py` decides who
is restarted, and when.

Invariants
* Every call ends: with its answer, or with the `WorkerError` of `end`.
* After `end` no process, no descriptor and no shared memory of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from stepwell.core import EncodingError, StepwellError, WorkerError
from stepwell.core.child_process import ChildProcess
from stepwell.core.fork_server import prepare_server
from stepwell.core.frames import Frame
from stepwell.envs.codecs import unpack_error
from stepwell.workers.heartbeat import PAGE_BYTES, HeartbeatPage
from stepwell.workers.shared_link import Link
from stepwell.workers.shared_memory import LARGE_BYTES, create_shared_file

MAX_LOG_BYTES = 1 << 24
_LINGER_S, _POLL_S = 30.0, 0.002  # a busy machine may need seconds to end a process that closed its socket


class ProcessLauncher:
    """Starts workers as processes of this machine, warm where that is possible."""

    def __init__(self, environment: Mapping[str, str], imports: Sequence[str], heartbeat_s: float) -> None:
        self._environment, self._imports, self._heartbeat_s = environment, imports, heartbeat_s

    async def launch_worker(
        self, name: str, number: int, on_lost: Callable[[WorkerConnection], None]
    ) -> WorkerConnection:
        """A started process that waits for its first frame."""
        await asyncio.to_thread(prepare_server, self._environment, self._imports)  # may take seconds
        try:
            return WorkerConnection(
                name,
                number,
                environment=self._environment,
                imports=self._imports,
                heartbeat_s=self._heartbeat_s,
                on_lost=on_lost,
            )
        except OSError as error:
            raise WorkerError(f"worker {name} cannot be started: {error}") from error


class WorkerConnection:
    """A started process and the link to it. `on_lost` is called once, if it has ended or must be ended."""

    def __init__(
        self,
        name: str,
        number: int,
        *,
        environment: Mapping[str, str],
        imports: Sequence[str],
        heartbeat_s: float,
        on_lost: Callable[[WorkerConnection], None],
    ) -> None:
        self.name, self.number = name, number
        self._ending: asyncio.Task[WorkerError] | None = None
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._numbers = itertools.count()
        with contextlib.ExitStack() as undo:
            self._start(environment, imports, heartbeat_s, undo)
            undo.pop_all()
        self.pid = self.child.pid
        self._loop.add_reader(self._link.socket, self._on_readable)

    def _start(
        self,
        environment: Mapping[str, str],
        imports: Sequence[str],
        heartbeat_s: float,
        undo: contextlib.ExitStack,
    ) -> None:
        page = create_shared_file(PAGE_BYTES)
        with contextlib.ExitStack() as theirs:
            theirs.callback(os.close, page)
            self.heartbeat = HeartbeatPage(page)
            undo.callback(self.heartbeat.close)
            ours, end = socket.socketpair()
            theirs.enter_context(end)
            self._link = Link(ours)
            undo.callback(self._link.close)
            command = [sys.executable, "-P", "-m", "stepwell.workers.worker_main"]
            self.child = ChildProcess(
                [*command, str(end.fileno()), str(page), str(heartbeat_s)],
                environment=environment,
                pass_fds=(end.fileno(), page),
                imports=imports,
            )
        ours.setblocking(False)

    # --- calls ----------------------------------------------------------------------------

    async def call(self, frame: Frame) -> Frame:
        """Send a call and wait for its answer. An answer that is an error is raised."""
        number = next(self._numbers)
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._pending[number] = future
        try:
            await self._send(number, frame)
            answer = await future
        finally:
            self._pending.pop(number, None)
        if answer.op == "error":
            raise unpack_error(answer.header.get("error"), WorkerError)
        return answer

    async def _send(self, number: int, frame: Frame) -> None:
        try:
            if sum([array.nbytes for array in frame.arrays]) < LARGE_BYTES:
                self._link.send(number, frame)
            else:  # copying gigabytes of weights must not delay the other workers
                await asyncio.to_thread(self._link.send, number, frame)
        except (ConnectionError, StepwellError, ValueError) as error:
            del self._pending[number]
            if isinstance(error, ConnectionError):
                self.give_up(str(error))
            if self._ending is None:  # a header that is not JSON, or no memory: not the worker's fault
                raise
            raise await asyncio.shield(self._ending) from error

    def _on_readable(self) -> None:
        try:
            frames = self._link.receive()
        except (EncodingError, WorkerError) as error:
            self.give_up(f"sent a message that cannot be read: {error}")
            return
        if frames is None:
            self.give_up("")
            return
        for number, frame in frames:
            future = self._pending.get(number)  # None: its caller was cancelled
            if future is not None and not future.done():
                future.set_result(frame)

    # --- watching -------------------------------------------------------------------------

    def read_state(self) -> tuple[int | None, float, float]:
        """Its process id, its memory in MB, and the time since its last heartbeat."""
        page = self.heartbeat
        return self.pid, page.memory_mb, page.silent_s if page.memory_mb else 0.0

    def was_ended_by_others(self) -> bool:
        """Whether a person, or a system short of memory, has killed it."""
        return self.child.was_killed_by_others()

    def find_trouble(self, hang_s: float) -> str | None:
        """Why it should be ended ("" if it is dead already); None while all is well."""
        if self.child.has_died():
            return ""
        if self.heartbeat.silent_s > hang_s:
            return f"gave no sign of life for {self.heartbeat.silent_s:.1f} s"
        if self.heartbeat.stuck_s > hang_s:
            return f"made no progress with a call for {self.heartbeat.stuck_s:.1f} s"
        self.child.trim_log(MAX_LOG_BYTES)
        return None

    # --- ending ---------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is being ended."""
        return self._ending is not None

    def give_up(self, why: str) -> None:
        """Give it up for this reason ("": it has ended) and report it to `on_lost`."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_process(why, 0.0))
            self._on_lost(self)

    async def end(self, why: str = "", *, grace_s: float = 0.0) -> WorkerError:
        """End it, free everything it holds and fail the pending calls; the error says how it ended.

        With `grace_s`, its socket is closed first and it has that long to end by itself.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_process(why, grace_s))
        return await asyncio.shield(self._ending)

    async def _end_process(self, why: str, grace_s: float) -> WorkerError:
        self._loop.remove_reader(self._link.socket)
        self._link.close()
        if not why:
            await self._await_death(grace_s or _LINGER_S)  # it closed its socket and is about to die
        self.child.kill_group()
        await self._await_death(float("inf"))
        self.child.kill()
        if not why and self.child.was_stopped:
            why = "closed its socket"
        error = WorkerError(f"worker {self.name} (pid {self.pid}) {self.child.describe_end(why)}")
        self.heartbeat.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(WorkerError(*error.args))
        return error

    async def _await_death(self, patience_s: float) -> None:
        until = self._loop.time() + patience_s
        while not self.child.has_died() and self._loop.time() < until:
            await asyncio.sleep(_POLL_S)
