"""Processes that model cases at once, one per core: cases do not depend on each other.

    forecast_ahead ─► CasePool.run_all ─┬─ socket ─► a child process (`case_worker.py`) ─► forecast_case
                                        └─ socket ─► …

They start when they are first needed. What travels is pickled: both ends are this program on this machine.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.core.child_process import ChildProcess, limit_threads
from stepwell.core.errors import InfraError


@dataclass(eq=False)
class _CaseProcess:
    """A process that models one case at a time."""

    process: ChildProcess
    link: socket.socket
    file: io.BufferedRWPair
    number: int = -1  # of its case


class CasePool:
    """As many processes as there are cores; none where there is one core."""

    def __init__(self, num_processes: int | None = None) -> None:
        self.size = len(os.sched_getaffinity(0)) if num_processes is None else num_processes
        self._processes: list[_CaseProcess] = []

    @property
    def pids(self) -> list[int]:
        """Of its processes."""
        return [one.process.pid for one in self._processes]

    def run_all(self, given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Model these cases; the forecasts in order."""
        while len(self._processes) < min(self.size, len(given)):
            self._processes.append(_start_process())
        found: dict[int, Any] = {}
        left, free = list(range(len(given))), list(self._processes)
        busy: dict[socket.socket, _CaseProcess] = {}
        while left or busy:
            while free and left:
                one = free.pop()
                one.number = left.pop(0)
                pickle.dump(given[one.number], one.file)
                one.file.flush()
                busy[one.link] = one
            for link in select.select(list(busy), [], [])[0]:
                one = busy.pop(link)
                found[one.number] = _read_forecast(one)
                free.append(one)
        return [found[number] for number in range(len(given))]

    def close(self) -> None:
        """End the processes."""
        for one in self._processes:
            one.process.kill()
            one.file.close()
            one.link.close()
        self._processes.clear()

    def __enter__(self) -> CasePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _start_process() -> _CaseProcess:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", "stepwell.runs.planner.case_worker", str(theirs.fileno())]
        environment = os.environ | limit_threads(1)
        process = ChildProcess(command, environment=environment, pass_fds=(theirs.fileno(),))
    return _CaseProcess(process, ours, ours.makefile("rwb"))


def _read_forecast(one: _CaseProcess) -> Any:
    try:
        return pickle.load(one.file)
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        one.process.wait(timeout_s=5.0)
        raise InfraError(f"a process that models cases {one.process.describe_end()}") from error
