"""A thread for environments: what is made in it is stepped and closed in it.

GL contexts, simulators and synchronous browser drivers belong to the thread that made them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from stepwell.core import EnvError
from stepwell.core.text import describe_error
from stepwell.envs.robots.cameras import close_renderers

T = TypeVar("T")


class EnvThread:
    """One thread that runs jobs in order. A daemon: a hanging one does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._on_end: Callable[[], None] | None = None
        self._is_stopped = False
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run_jobs, name=name, daemon=True).start()

    def submit(self, do: Callable[[], T]) -> Future[T]:
        """Run a job after the jobs submitted before."""
        if self._is_stopped:
            raise EnvError("the thread of this environment has ended: it was closed")
        future: Future[T] = Future()
        self._jobs.put((future, do))
        return future

    def stop(self, on_end: Callable[[], None] | None = None) -> None:
        """End after the waiting jobs. `on_end` is then called in this thread."""
        self._on_end, self._is_stopped = on_end, True
        self._jobs.put(None)

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, do = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(do())
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:  # would end the loop that receives it; Ctrl-C comes elsewhere
                failure = EnvError(f"the environment raised {describe_error(error)}")
                failure.__cause__ = error
                future.set_exception(failure)
                del failure
            del job, future, do  # what a job holds is free while the thread waits for the next
        close_renderers()
        if self._on_end is not None:
            self._on_end()
