"""One started worker process as its parent sees it: calls out, answers in, and its end.

It leads a session and a process group of its own, so that a Ctrl-C reaches only the parent and the end
takes along what it forked. Its output goes to a file without a name, whose last lines are part of every
error about its end. Who restarts it, and when, is `process.py`'s business.

Invariants
* Every call ends: with its answer, or with the `WorkerError` that `end` hands to all that wait.
* After `end` no process, no descriptor and no shared memory of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import IO

from stepwell.core import EncodingError, StepwellError, WorkerError
from stepwell.core.frames import Frame
from stepwell.envs.codecs import unpack_error
from stepwell.workers.heartbeat import MARKS_BYTES, Marks
from stepwell.workers.shared_link import Link
from stepwell.workers.shared_memory import LARGE_BYTES, shared_file

NUM_LOG_LINES, LOG_TAIL_BYTES, MAX_LOG_BYTES = 12, 4096, 1 << 24
_LINGER_S, _POLL_S = 30.0, 0.002  # a loaded machine may need seconds to end what has closed its socket
_CRASH = "Fatal Python error"


class Life:
    """A started process. `on_lost` is called once, if it is gone or must be ended."""

    def __init__(
        self,
        name: str,
        number: int,
        *,
        environment: Mapping[str, str],
        heartbeat_s: float,
        on_lost: Callable[[Life], None],
    ) -> None:
        self.name, self.number = name, number
        self.was_killed = False  # from outside: by a person, or by a system short of memory
        self._ending: asyncio.Task[WorkerError] | None = None
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._numbers = itertools.count()
        with contextlib.ExitStack() as undo:
            self._start(environment, heartbeat_s, undo)
            undo.pop_all()
        self._loop.add_reader(self._link.socket, self._on_readable)

    def _start(self, environment: Mapping[str, str], heartbeat_s: float, undo: contextlib.ExitStack) -> None:
        self._log: IO[bytes] = undo.enter_context(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # so that it can be cut under its writer
        page = shared_file(MARKS_BYTES)
        with contextlib.ExitStack() as theirs:
            theirs.callback(os.close, page)
            self.marks = Marks(page)
            undo.callback(self.marks.close)
            ours, end = socket.socketpair()
            theirs.enter_context(end)
            self._link = Link(ours)
            undo.callback(self._link.close)
            lifeline, self._lifeline = os.pipe()
            theirs.callback(os.close, lifeline)
            undo.callback(os.close, self._lifeline)
            handed = (end.fileno(), lifeline, page)
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "stepwell.workers.worker_main", *map(str, handed),
                 str(heartbeat_s)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=handed,
                env=dict(environment),
                start_new_session=True,
            )  # fmt: skip
        ours.setblocking(False)

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._popen.pid

    # --- calls ----------------------------------------------------------------------------

    async def call(self, frame: Frame) -> Frame:
        """Its answer. An answer that is an error is raised."""
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
            else:  # the copy of gigabytes of weights must not hold up the other workers
                await asyncio.to_thread(self._link.send, number, frame)
        except (ConnectionError, StepwellError, ValueError) as error:
            del self._pending[number]
            if isinstance(error, ConnectionError):
                self.lose(str(error))
            if self._ending is None:  # a header that is no JSON, or no memory: not the worker's fault
                raise
            raise await asyncio.shield(self._ending) from error

    def _on_readable(self) -> None:
        try:
            frames = self._link.receive()
        except (EncodingError, WorkerError) as error:
            self.lose(f"sent what cannot be read: {error}")
            return
        if frames is None:
            self.lose("")
            return
        for number, frame in frames:
            future = self._pending.get(number)  # None: its caller was cancelled
            if future is not None and not future.done():
                future.set_result(frame)

    # --- how it is ------------------------------------------------------------------------

    def trouble(self, hang_s: float) -> str | None:
        """Why it should be ended ("" if it is dead already); None while all is well."""
        if self.has_died():
            return ""
        if self.marks.silent_s > hang_s:
            return f"gave no sign of life for {self.marks.silent_s:.1f} s"
        if self.marks.stuck_s > hang_s:
            return f"was at a call for {self.marks.stuck_s:.1f} s without getting on"
        if os.fstat(self._log.fileno()).st_size > MAX_LOG_BYTES:
            os.truncate(self._log.fileno(), 0)
        return None

    def has_died(self) -> bool:
        """Whether it has ended by itself; its status stays to be collected by `end`."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:  # someone else in this process has collected it
            return True

    # --- its end --------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is being ended."""
        return self._ending is not None

    def lose(self, why: str) -> None:
        """It is not to be used any more, for this reason ("": it is gone); tells whoever restarts it."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(why, 0.0))
            self._on_lost(self)

    async def end(self, why: str = "", *, grace_s: float = 0.0) -> WorkerError:
        """End it, free all it holds, and fail the calls under way; the error says how it ended.

        With `grace_s` it is first asked (its socket is closed) and given that time.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(why, grace_s))
        return await asyncio.shield(self._ending)

    async def _end(self, why: str, grace_s: float) -> WorkerError:
        self._loop.remove_reader(self._link.socket)
        self._link.close()
        if not why:
            await self._await_death(grace_s or _LINGER_S)  # whose socket is closed is about to die
        had_died = self.has_died()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # only its dead leader is left
            os.killpg(self.pid, signal.SIGKILL)
        await self._await_death(float("inf"))
        code = self._popen.wait()
        self.was_killed = had_died and code == -signal.SIGKILL
        if not why:
            why = _ending(code) if had_died else "closed its socket"
        words = f"worker {self.name} (pid {self.pid}) {why}{self._last_words()}"
        os.close(self._lifeline)
        self.marks.close()
        self._log.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(WorkerError(words))
        return WorkerError(words)

    async def _await_death(self, patience_s: float) -> None:
        until = self._loop.time() + patience_s
        while not self.has_died() and self._loop.time() < until:
            await asyncio.sleep(_POLL_S)

    def _last_words(self) -> str:
        """The last lines of its output, or the first ones about a crash."""
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - LOG_TAIL_BYTES)
        text = os.pread(self._log.fileno(), LOG_TAIL_BYTES, start).decode(errors="replace")
        crash = text.rfind(_CRASH)
        lines = [line for line in text[max(crash, 0) :].splitlines() if line.strip()]
        shown = lines[-NUM_LOG_LINES:] if crash < 0 else lines[:NUM_LOG_LINES]
        return "; its last words:\n" + "\n".join(shown) if shown else ""


def _ending(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"died of {signal.Signals(-code).name}"
