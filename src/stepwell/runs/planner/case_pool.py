"""Processes that model cases at once, one per core: cases do not depend on each other.

    forecast.model_ahead ─► CasePool.run_all ─┬─ pipe ─► a forked process ─► run_case
                                              └─ pipe ─► …

They are forked, so that they know what this process knows, and while it has no threads that matter. Ctrl-C
reaches only the process that started them.

Invariant: they end with that process, however it ends, because their pipe is closed then.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM)


class CasePool:
    """Processes that call one function. On one core there are none, nor where a system cannot fork safely."""

    def __init__(self, call: Callable[..., Any], num_processes: int | None = None) -> None:
        if num_processes is None:
            num_processes = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
        self.size = num_processes if num_processes > 1 else 0
        self._links: list[Connection] = []
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)  # until the processes ignore them
        try:
            for _ in range(self.size):
                self._start_process(call)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _start_process(self, call: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        self._links.append(ours)
        context.Process(target=_serve, args=(call, theirs, self._links), daemon=True).start()
        theirs.close()

    def run_all(self, given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call the function with each of these; the results in order, or the first error."""
        found: dict[int, Any] = {}
        left, busy = list(range(len(given))), dict[Connection, int]()
        free = list(self._links)
        while left or busy:
            while free and left:
                busy[link := free.pop()] = left.pop(0)
                link.send(given[busy[link]])
            ready = wait(list(busy))
            for link in [link for link in busy if link in ready]:
                result = link.recv()
                if isinstance(result, Exception):
                    raise result
                found[busy.pop(link)] = result
                free.append(link)
        return [found[number] for number in range(len(given))]

    def close(self) -> None:
        """End the processes."""
        for link in self._links:
            link.close()

    def __enter__(self) -> CasePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(call: Callable[..., Any], link: Connection, others: Sequence[Connection]) -> None:
    for other in others:  # else a pipe would stay open when its owner has ended
        other.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    while True:
        try:
            given = link.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            result = call(*given)
        except Exception as error:  # raised again in the process that asked
            result = error
        try:
            link.send(result)
        except OSError:
            os._exit(0)
