"""The parent's handle of one agent process: JSON lines in both directions, and the episode that runs now.

A handle schedules nothing and waits for nothing but `ask_place`: writing keeps what the pipe does not take
yet, reading returns what is there. `core/child_process.py` starts and ends the process.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stepwell.core.child_process import ChildProcess
from stepwell.core.process_memory import measure_tree_memory_mb

MARKS_BYTES = 16
FULL_PIPE_S, PLACE_WAIT_S = 0.002, 1.0
STATUSES = ("done", "agent_error", "infra_error")
_IMPORTS = ("numpy", "stepwell.rollout.agent_outcome", "stepwell.rollout.agent_target")
_EXIT_WAIT_S = 0.5
_CHUNK = 1 << 16


class AgentProcess:
    """A started process. `hello` is the first message to it."""

    def __init__(self, hello: Mapping[str, Any], log: Path, environment: Mapping[str, str]) -> None:
        self.started_s = time.monotonic()
        self.ready: dict[str, Any] | None = None
        self._unread, self._unsent = bytearray(), bytearray()
        with tempfile.TemporaryFile() as shared:
            shared.truncate(MARKS_BYTES)
            self._marks = mmap.mmap(shared.fileno(), MARKS_BYTES)
            self._start(shared.fileno(), log, environment)
        self._num_entries, self._entered_s = -1, self.started_s
        self.send_message(hello)

    def _start(self, marks: int, log: Path, environment: Mapping[str, str]) -> None:
        jobs, self._jobs = os.pipe()
        self.results, results = os.pipe()
        theirs = (jobs, results, marks)
        command = [sys.executable, "-P", "-m", "stepwell.rollout.agent_worker", *map(str, theirs)]
        try:
            self.child = ChildProcess(
                command, environment=environment, log=log, pass_fds=theirs, imports=_IMPORTS
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(jobs)
            os.close(results)
        os.set_blocking(self._jobs, False)
        os.set_blocking(self.results, False)

    def _close_pipes(self) -> None:
        os.close(self._jobs)
        os.close(self.results)

    # --- lines ----------------------------------------------------------------------------

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message now, or as soon as the pipe accepts it (see `flush_unsent`)."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush_unsent()

    def flush_unsent(self) -> bool:
        """Write as much as the pipe accepts; True if nothing is left."""
        while self._unsent:
            try:
                del self._unsent[: os.write(self._jobs, self._unsent)]
            except BlockingIOError:
                return False
            except BrokenPipeError:  # the process has ended; reading will show it
                self._unsent.clear()
        return True

    def receive_messages(self) -> tuple[list[dict[str, Any]], bool]:
        """The new messages, and whether more may come: not after its end, nor after an invalid line."""
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

    # --- watching -------------------------------------------------------------------------

    def find_holder(self) -> int:
        """The number of the episode whose code its event loop runs; 0 if none."""
        return int.from_bytes(self._marks[:8], sys.byteorder)

    def measure_hold(self, now: float) -> tuple[int, float]:
        """That number, and for how long it has held the loop, as far as calls of this method have seen."""
        holder, num_entries = self.find_holder(), int.from_bytes(self._marks[8:16], sys.byteorder)
        if num_entries != self._num_entries or not holder:
            self._num_entries, self._entered_s = num_entries, now
        return holder, now - self._entered_s

    def ask_place(self, number: int, handle: Callable[[dict[str, Any]], None]) -> str:
        """The line that an episode is at; empty if the process does not say soon. `handle` gets the rest."""
        self.send_message({"where": number})
        until, is_open, place = time.monotonic() + PLACE_WAIT_S, True, None
        while place is None and is_open and time.monotonic() < until:
            time.sleep(FULL_PIPE_S)
            self.flush_unsent()
            messages, is_open = self.receive_messages()
            for message in messages:
                if message.get("at") == number:
                    place = str(message["place"]).rstrip()
                else:
                    handle(message)
        return place or ""

    def measure_memory_mb(self) -> float:
        """Resident memory of the process and of everything it started."""
        return measure_tree_memory_mb(self.child.pid)

    # --- ending ---------------------------------------------------------------------------

    def await_end(self) -> None:
        """Wait a moment for a process that has closed its pipe, to get its exit code."""
        self.child.wait(_EXIT_WAIT_S)

    def kill(self) -> tuple[str, bool]:
        """End it with everything it forked. Returns how it ended, and whether others killed it."""
        self.child.kill()
        self._close_pipes()
        self._marks.close()
        return self.child.describe_end(), self.child.was_killed_by_others()


def _is_message(value: object) -> bool:
    """Whether a line is a message of `agent_worker.py`."""
    if not isinstance(value, dict):
        return False
    is_over = isinstance(value.get("over"), int) and value.get("status") in STATUSES
    is_place = isinstance(value.get("at"), int) and isinstance(value.get("place"), str)
    return is_over or is_place or "ready" in value or isinstance(value.get("refused"), str)
