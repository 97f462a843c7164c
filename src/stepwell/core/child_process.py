"""Child processes: how they are started, watched, described and ended. Standard library only.

    parent                                         child
    ──────                                         ─────
    ChildProcess(command)   ── standard input ──►  end_with_parent, or call_when_parent_ends
    exit_code, wait         ◄── its end ─────────
    describe_end            ◄── log ─────────────  standard output and standard error
    kill                    ── SIGKILL ─────────►  its whole process group

Invariants
* A child leads its own session and process group. Ctrl-C at the terminal reaches only the parent.
* A child can notice every end of its parent, kill -9 included: its standard input is a pipe, and only the
  parent holds the other end.
* The status of a child is collected only after its group was killed. Until then the group's number cannot
  belong to anybody else.
* After `kill`, nothing is left: no process of the group, no pipe, no open log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from stepwell.core.fork_server import ForkedProcess, start_warm

NUM_LOG_LINES, LOG_TAIL_BYTES = 12, 4096
_CRASH = "Fatal Python error"
_POLL_S = 0.002
_SENT_BY_OTHERS = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT}
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TORCHINDUCTOR_COMPILE_THREADS",  # otherwise a child that compiles starts one process per core
)


def limit_threads(num_threads: int) -> dict[str, str]:
    """Environment variables that limit the threads of the numeric libraries."""
    return dict.fromkeys(_THREAD_VARIABLES, str(num_threads))


class ChildProcess:
    """A started process.

    `log` is the file that its output is appended to. Without it, the output goes to a file without a name,
    which is enough for `log_tail`. With `pipe_output`, standard output is a pipe instead (`stdout`). With
    `imports`, a command `[python, "-m", MODULE, …]` is forked, where that is possible, from a process that
    has imported those modules (`fork_server.py`); with `keeps_server` its own children start so too.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        pass_fds: Sequence[int] = (),
        pipe_output: bool = False,
        imports: Sequence[str] = (),
        keeps_server: bool = False,
    ) -> None:
        self.was_stopped = False  # it ran until `kill` ended it
        self._tail = ""
        self._log: IO[bytes] = (
            tempfile.TemporaryFile("a+b", buffering=0) if log is None else log.open("a+b", buffering=0)  # noqa: SIM115
        )
        self._log_start = os.fstat(self._log.fileno()).st_size
        try:
            self._process = _start_process(
                list(command),
                dict(os.environ if environment is None else environment),
                imports,
                output=subprocess.PIPE if pipe_output else self._log.fileno(),
                errors=self._log.fileno(),
                pass_fds=tuple(pass_fds),
                keeps_server=keeps_server,
            )
        except BaseException:
            self._log.close()
            raise
        self.pid: int = self._process.pid  # also the number of its process group
        assert self._process.stdin is not None
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] | None = self._process.stdout

    def send_line(self, line: str) -> None:
        """Write a line to its standard input. Its death is not reported here but by `exit_code`."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.write(line.encode() + b"\n")

    # --- watching -------------------------------------------------------------------------

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N if signal N killed it. The status is not collected."""
        if self._process.returncode is not None:
            return int(self._process.returncode)
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # other code in this process has collected it
            return 0
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def has_died(self) -> bool:
        """Whether it has ended."""
        return self.exit_code is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end at most this long; whether it has ended."""
        until = time.monotonic() + timeout_s
        while not self.has_died() and time.monotonic() < until:
            time.sleep(_POLL_S)
        return self.has_died()

    def trim_log(self, max_bytes: int) -> None:
        """Empty the log once it is too large."""
        if os.fstat(self._log.fileno()).st_size > max_bytes:
            os.truncate(self._log.fileno(), 0)

    # --- ending ---------------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        """Send a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Send SIGKILL to its process group without waiting. `kill` must follow."""
        self.was_stopped |= not self.has_died()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # only its dead leader is left
            os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> int:
        """Kill it with everything it forked and close its files; returns its exit code. Twice is fine."""
        is_first = self._process.returncode is None
        if is_first:
            self.kill_group()
        code = self._process.wait()
        if is_first:
            self._tail = self.log_tail()
        self.release()
        return code

    def stop(self, grace_s: float) -> int:
        """Close its standard input, give it time to end by itself, then kill it."""
        self.stdin.close()
        self.wait(grace_s)
        return self.kill()

    def release(self) -> None:
        """Close its pipes and its log without ending it."""
        for file in (self.stdin, self.stdout, self._log):
            if file is not None:
                file.close()

    # --- describing -----------------------------------------------------------------------

    def was_killed_by_others(self) -> bool:
        """Whether a person, or a system short of memory, has killed it."""
        return not self.was_stopped and self.exit_code in _SENT_BY_OTHERS

    def describe_end(self, why: str = "") -> str:
        """How it ended (or `why`), and the last lines of its log: "ended with exit code 5; its log …"."""
        tail = self.log_tail()
        how = "was stopped" if self.was_stopped else describe_exit(self.exit_code or 0)
        return (why or how) + (f"; its log ends with\n{tail}" if tail else "")

    def log_tail(self) -> str:
        """The last lines of its log, or the first lines about a crash."""
        if self._log.closed:
            return self._tail
        size = os.fstat(self._log.fileno()).st_size
        start = self._log_start if size >= self._log_start else 0  # smaller: it was trimmed
        start = max(start, size - LOG_TAIL_BYTES)
        text = os.pread(self._log.fileno(), LOG_TAIL_BYTES, start).decode(errors="replace")
        crash = text.rfind(_CRASH)
        lines = [line for line in text[max(crash, 0) :].splitlines() if line.strip()]
        return "\n".join(lines[-NUM_LOG_LINES:] if crash < 0 else lines[:NUM_LOG_LINES])


def _start_process(
    command: list[str], environment: dict[str, str], imports: Sequence[str], **files: Any
) -> subprocess.Popen[bytes] | ForkedProcess:
    """Start it warm if wished and possible, else cold."""
    forked = start_warm(command, environment, imports, **files) if imports else None
    if forked is not None:
        return forked
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=files["output"],
        stderr=files["errors"],
        bufsize=0,
        env=environment,
        pass_fds=files["pass_fds"],
        start_new_session=True,
    )


def describe_exit(code: int) -> str:
    """An exit code in words: "ended with exit code 1" or "was killed by SIGKILL"."""
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


# --- in the child -------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Let the kernel kill this process group when the parent ends, even while this process is stuck.

    From then on standard input is empty: the pipe is held under another number, and must stay silent.
    """
    lifeline, empty = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    if hasattr(fcntl, "F_SETSIG"):  # elsewhere it is SIGIO, which ends a process that does not handle it
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # the parent ended before
        end_process_group()


def end_process_group() -> None:
    """Kill this process and everything it forked, at once."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def read_first_line() -> bytes:
    """The first line of standard input. It is read without a buffer, which could hold a lock at exit."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            raise SystemExit("the parent process is gone")
        line += piece
    return line


def call_when_parent_ends(action: Callable[[], None]) -> None:
    """Run `action` in a thread when standard input is closed: the parent has ended, or wants an end."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        action()

    threading.Thread(target=wait, name="parent", daemon=True).start()
