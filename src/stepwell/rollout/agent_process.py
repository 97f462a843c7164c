"""One worker process as its parent sees it: lines out, lines in, marks, a log, and its end.

A handle does no scheduling and never waits: writing keeps what the pipe does not take yet,
reading returns what is there. The process leads a session and a process group of its own, so
that a Ctrl-C at the terminal reaches only the parent, and `kill` ends all that it forked. Its
status is collected only after the group was signalled: until then the group's number cannot
belong to anyone else.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.rollout.process_memory import tree_memory_mb

MARKS_BYTES = 16
STATUSES = ("done", "agent_error", "infra_error")
NUM_LOG_LINES, LOG_TAIL_BYTES = 10, 4096
_CRASH = "Fatal Python error"
_EXIT_WAIT_S = 0.5
_CHUNK = 1 << 16
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT}


class AgentProcess:
    """A started worker. `hello` is what it is told first."""

    def __init__(self, hello: Mapping[str, Any], log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self.started_s = time.monotonic()
        self.ready: dict[str, Any] | None = None
        self._unread, self._unsent = bytearray(), bytearray()
        with tempfile.TemporaryFile() as shared:
            shared.truncate(MARKS_BYTES)
            self._marks = mmap.mmap(shared.fileno(), MARKS_BYTES)
            self._start(shared.fileno(), environment)
        self._beats, self._beats_since = -1, self.started_s
        self.send(hello)

    def _start(self, marks: int, environment: Mapping[str, str]) -> None:
        jobs, self._jobs = os.pipe()
        self.results, results = os.pipe()
        lifeline, self._lifeline = os.pipe()
        theirs = (jobs, results, lifeline, marks)
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self._popen = subprocess.Popen(
                    [sys.executable, "-P", "-m", "stepwell.rollout.agent_worker", *map(str, theirs)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=theirs,
                    env=dict(environment),
                    start_new_session=True,
                )
        except BaseException:
            for descriptor in (self._jobs, self.results, self._lifeline):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (jobs, results, lifeline):
                os.close(descriptor)
        os.set_blocking(self._jobs, False)
        os.set_blocking(self.results, False)

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        return self._popen.pid

    # --- lines ----------------------------------------------------------------------------

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand a message over, now or (see `flush`) as soon as the pipe takes it."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Write what the pipe takes; whether that was all."""
        while self._unsent:
            try:
                del self._unsent[: os.write(self._jobs, self._unsent)]
            except BlockingIOError:
                return False
            except BrokenPipeError:  # it is gone, which reading will show
                self._unsent.clear()
        return True

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """The messages that came, and whether more may come: not after its end, nor after nonsense."""
        is_open = True
        while is_open:
            try:
                read = os.read(self.results, _CHUNK)
            except BlockingIOError:
                break
            self._unread += read
            is_open = bool(read)
        *lines, rest = self._unread.split(b"\n")
        self._unread = bytearray(rest)
        messages: list[dict[str, Any]] = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                return messages, False
            if not _is_message(message):
                return messages, False
            messages.append(message)
        return messages, is_open

    # --- what it is doing -----------------------------------------------------------------

    def holder(self) -> int:
        """The number of the episode whose code its event loop is in; 0 if none."""
        return int.from_bytes(self._marks[:8], sys.byteorder)

    def held_s(self, now: float) -> tuple[int, float]:
        """That number, and for how long, as far as calls of this method have seen."""
        holder, beats = self.holder(), int.from_bytes(self._marks[8:16], sys.byteorder)
        if beats != self._beats or not holder:
            self._beats, self._beats_since = beats, now
        return holder, now - self._beats_since

    def has_died(self) -> bool:
        """Whether it has ended by itself; its status stays to be collected by `kill`."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:  # someone else in this process has collected it
            return True

    def memory_mb(self) -> float:
        """Resident memory of it and what it started."""
        return tree_memory_mb(self.pid)

    def trim_log(self, max_bytes: int) -> None:
        """Start the log anew once it is too large."""
        with contextlib.suppress(FileNotFoundError):  # a log that someone removed ends no training
            if self.log.stat().st_size > max_bytes:
                os.truncate(self.log, 0)

    def log_tail(self) -> str:
        """The last lines of its log, or the first ones about a crash."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            start = self._log_start if size >= self._log_start else 0  # it was started anew
            log.seek(max(start, size - LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
        crash = text.rfind(_CRASH)
        lines = [line for line in text[max(crash, 0) :].splitlines() if line.strip()]
        return "\n".join(lines[-NUM_LOG_LINES:] if crash < 0 else lines[:NUM_LOG_LINES])

    # --- its end --------------------------------------------------------------------------

    def await_end(self) -> None:
        """Give a process that has closed its pipe a moment to end by itself, so that it can say how."""
        until = time.monotonic() + _EXIT_WAIT_S
        while not self.has_died() and time.monotonic() < until:
            time.sleep(0.002)

    def kill(self) -> tuple[str, bool]:
        """End it and all it forked. Says how it had ended if it had, and whether someone outside did it."""
        had_died = self.has_died()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # only its dead leader is left
            os.killpg(self.pid, signal.SIGKILL)
        code = self._popen.wait()
        for descriptor in (self._jobs, self.results, self._lifeline):
            os.close(descriptor)
        self._marks.close()
        if not had_died:
            return "was stopped", False
        if code >= 0:
            return f"ended with exit code {code}", False
        return f"died of {signal.Signals(-code).name}", signal.Signals(-code) in _FROM_OUTSIDE


def _is_message(value: object) -> bool:
    """Whether a line says something that workers say."""
    if not isinstance(value, dict):
        return False
    is_over = isinstance(value.get("over"), int) and value.get("status") in STATUSES
    return is_over or "ready" in value or isinstance(value.get("refused"), str)
