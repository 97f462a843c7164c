"""Group commit: threads that write at the same time share one transaction.

    run(work) ─► queue ─► one caller drains the queue ─► one transaction ─► all return

A commit costs far more than a row, especially if it waits for a disk. The first thread to get the
turn runs the work of every waiting thread and commits once; the others find their work done. `run`
returns only after the commit that contains its work, so accepted means committed.

Invariants
* A failing piece of work never harms another: the shared transaction is rolled back, and every
  piece runs again in its own transaction. Work must therefore change nothing but the database.
* After a deadlock or a lost connection, work is retried for some seconds: a PostgreSQL server needs
  that long to recover when one of its processes was killed. All writes of the pool may be repeated:
  what exists already is found and kept.
* A failed connection is dropped. A connection stays open after a user's mistake.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from stepwell.core.errors import InfraError, StepwellError

T = TypeVar("T")
_MAX_SHARED = 64  # pieces of work in one transaction: bounds how long others wait for the lock
_PATIENCE_S = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0
# PostgreSQL: deadlock, serialization failure, a group that was removed while a trajectory joined it, and
# a server that shuts down, crashed, or is not up yet
_REPEATABLE = {"40P01", "40001", "23503", "57P01", "57P02", "57P03"}
# What a server says to a new connection, without a code, when it will be ready soon
_RECOVERING = ("starting up", "recovery mode", "not yet accepting")
_ADVICE = {
    "is not a database": "the file is of another kind, or damaged: use another file or an intact copy",
    "malformed": "the file is damaged: restore a copy, or export what can still be read",
    "is full": "free some space on the disk",
    "readonly": "make the file and its folder writable, or copy the pool elsewhere",
    "refused": "start the server, or correct the URL",
    "does not exist": "create it on the server, or correct the URL",
    "authentication failed": "correct the user and password in the URL",
}
_AWAY = (*_RECOVERING, "shutting down", "server closed", "refused")


class _Job(Generic[T]):
    """One piece of work and, later, its result."""

    def __init__(self, work: Callable[[Connection], T]) -> None:
        self.work = work
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None

    def result(self) -> T:
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[no-any-return]


class Committer:
    """Runs work in write transactions on one connection, for any number of threads."""

    def __init__(
        self, connect: Callable[[], Connection], lock: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self._connect = connect
        self._lock = lock  # excludes other processes, if the database cannot queue them itself
        self._connection: Connection | None = None
        self._turn = threading.Lock()
        self._waiting: deque[_Job[Any]] = deque()
        self.num_commits = 0

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work(connection)` in a transaction that is committed when this returns."""
        job = _Job(work)
        self._waiting.append(job)
        with self._turn:
            if not job.is_done:
                jobs = self._take_jobs()
                self._commit_jobs(jobs if job in jobs else [job, *jobs])
        return job.result()

    def is_free(self, is_lock_free: Callable[[], bool]) -> bool:
        """Whether no thread writes or waits to write, and the lock is free (tested with the turn held)."""
        if self._waiting or not self._turn.acquire(blocking=False):
            return False
        try:
            return is_lock_free()
        finally:
            self._turn.release()

    def close(self) -> None:
        with self._turn:
            self._drop_connection()

    def _take_jobs(self) -> list[_Job[Any]]:
        jobs: list[_Job[Any]] = []
        while self._waiting and len(jobs) < _MAX_SHARED:
            jobs.append(self._waiting.popleft())
        return jobs

    def _commit_jobs(self, jobs: list[_Job[Any]]) -> None:
        try:
            values = self._run_transaction(jobs)
        except Exception as error:
            if len(jobs) == 1:
                self._retry_job(jobs[0], error)
            else:
                for job in jobs:
                    self._commit_jobs([job])
            return
        for job, value in zip(jobs, values, strict=True):
            job.value, job.is_done = value, True

    def _retry_job(self, job: _Job[Any], error: Exception) -> None:
        """Retry a piece of work that failed with a transient error."""
        try:
            job.value = retry_transient(lambda: self._run_transaction([job])[0], error)
        except Exception as last_error:
            job.error = to_stepwell_error(last_error)
        job.is_done = True

    def _run_transaction(self, jobs: list[_Job[Any]]) -> list[Any]:
        with self._lock():
            if self._connection is None:
                self._connection = self._connect()
            try:
                with self._connection.begin():
                    values = [job.work(self._connection) for job in jobs]
            except StepwellError:
                raise
            except BaseException:
                self._drop_connection()
                raise
            self.num_commits += 1
            return values

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


def retry_transient(
    work: Callable[[], T], error: Exception | None = None, patience_s: float = _PATIENCE_S
) -> T:
    """Run `work()`, and retry it after transient errors; `error` is an earlier failure.

    A server that says it is recovering gets `_PATIENCE_S`, however short `patience_s` is.
    """
    start, pause = time.monotonic(), _FIRST_PAUSE_S
    while True:
        if error is not None:
            allowed_s = _PATIENCE_S if _mentions_error(error, _RECOVERING) else patience_s
            if not _is_transient(error) or time.monotonic() > start + allowed_s:
                raise error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        try:
            return work()
        except Exception as next_error:
            error = next_error


def _is_transient(error: Exception) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or state in _REPEATABLE or _mentions_error(error, _AWAY)


def _mentions_error(error: Exception, what: tuple[str, ...]) -> bool:
    return isinstance(error, DBAPIError) and any(words in str(error.orig) for words in what)


def to_stepwell_error(error: Exception, where: str = "") -> Exception:
    """A database error as an `InfraError` with advice; other errors unchanged."""
    if isinstance(error, DBAPIError):
        problem = " ".join(str(error.orig).split())
        place = f" ({where})" if where else ""
        return InfraError(f"the pool's database{place} failed: {problem}{_suggest_fix(problem)}")
    return error


def _suggest_fix(problem: str) -> str:
    """What to do about a database error; empty if unknown."""
    return next((f"; {words}" for cause, words in _ADVICE.items() if cause in problem), "")
