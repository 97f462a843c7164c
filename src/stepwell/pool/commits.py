"""Group commit: threads that write at the same time share one transaction.

    run(work) ─► queue ─► whoever gets the turn drains the queue ─► one transaction ─► all return

A commit costs far more than a row, above all where it waits for a disk. The first thread to get
the turn runs what every waiting thread has asked for and commits once; the others find their work
done. `run` returns only after the commit that holds its work, so accepted means committed.

Invariants
* One failing piece of work never costs another: the shared transaction is rolled back and every
  piece runs again in one of its own. Work must therefore change nothing but the database.
* Work that met a deadlock or a lost connection runs again, for some seconds: a PostgreSQL server
  one of whose processes was killed needs that long to come back. All writes of the pool may be
  repeated: what is there already is found and kept.
* A connection that failed is thrown away; one that met a user's mistake is kept.
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
# PostgreSQL: deadlock, serialization failure, a group that was collected while one joined it, and a
# server that shuts down, crashed, or is not up yet
_REPEATABLE = {"40P01", "40001", "23503", "57P01", "57P02", "57P03"}
# What a server says to a new connection, without a code, when it will be there soon
_RECOVERING = ("starting up", "recovery mode", "not yet accepting")
_ADVICE = {
    "is not a database": "it is another kind of file, or damaged: give another, or a copy that is whole",
    "malformed": "the file is damaged: go back to a copy, or export what can still be read",
    "is full": "free some space on the disk",
    "readonly": "make the file and its folder writable, or copy the pool elsewhere",
    "refused": "start the server, or correct the URL",
    "does not exist": "create it on the server, or correct the URL",
    "authentication failed": "correct user and password in the URL",
}
_AWAY = (*_RECOVERING, "shutting down", "server closed", "refused")


class _Job(Generic[T]):
    """One piece of work and, later, what came of it."""

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
        self._lock = lock  # keeps other processes out, where the database cannot queue them itself
        self._connection: Connection | None = None
        self._turn = threading.Lock()
        self._waiting: deque[_Job[Any]] = deque()
        self.num_commits = 0

    def run(self, work: Callable[[Connection], T]) -> T:
        """`work(connection)` in a transaction that is committed when this returns."""
        job = _Job(work)
        self._waiting.append(job)
        with self._turn:
            if not job.is_done:
                jobs = self._drain()
                self._commit(jobs if job in jobs else [job, *jobs])
        return job.result()

    def is_free(self, is_lock_free: Callable[[], bool]) -> bool:
        """Whether no thread writes or waits to, and `is_lock_free`, which is asked in a turn of its own."""
        if self._waiting or not self._turn.acquire(blocking=False):
            return False
        try:
            return is_lock_free()
        finally:
            self._turn.release()

    def close(self) -> None:
        with self._turn:
            self._drop_connection()

    def _drain(self) -> list[_Job[Any]]:
        jobs: list[_Job[Any]] = []
        while self._waiting and len(jobs) < _MAX_SHARED:
            jobs.append(self._waiting.popleft())
        return jobs

    def _commit(self, jobs: list[_Job[Any]]) -> None:
        try:
            values = self._transaction(jobs)
        except Exception as error:
            if len(jobs) == 1:
                self._finish(jobs[0], error)
            else:
                for job in jobs:
                    self._commit([job])
            return
        for job, value in zip(jobs, values, strict=True):
            job.value, job.is_done = value, True

    def _finish(self, job: _Job[Any], error: Exception) -> None:
        """Give a piece of work that failed by no fault of its own more chances."""
        try:
            job.value = patiently(lambda: self._transaction([job])[0], error)
        except Exception as last_error:
            job.error = as_ours(last_error)
        job.is_done = True

    def _transaction(self, jobs: list[_Job[Any]]) -> list[Any]:
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


def patiently(work: Callable[[], T], error: Exception | None = None, patience_s: float = _PATIENCE_S) -> T:
    """`work()`, again and again while what goes wrong will pass; `error` is how it failed already.

    A server that says it recovers is there, so it is given `_PATIENCE_S`, however short `patience_s` is.
    """
    start, pause = time.monotonic(), _FIRST_PAUSE_S
    while True:
        if error is not None:
            allowed_s = _PATIENCE_S if _says(error, _RECOVERING) else patience_s
            if not _will_pass(error) or time.monotonic() > start + allowed_s:
                raise error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        try:
            return work()
        except Exception as next_error:
            error = next_error


def _will_pass(error: Exception) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    return error.connection_invalidated or state in _REPEATABLE or _says(error, _AWAY)


def _says(error: Exception, what: tuple[str, ...]) -> bool:
    return isinstance(error, DBAPIError) and any(words in str(error.orig) for words in what)


def as_ours(error: Exception, where: str = "") -> Exception:
    """What the database says went wrong, as an error a caller can tell apart."""
    if isinstance(error, DBAPIError):
        problem = " ".join(str(error.orig).split())
        place = f" ({where})" if where else ""
        return InfraError(f"the pool's database{place} failed: {problem}{_advise(problem)}")
    return error


def _advise(problem: str) -> str:
    """What to do about what a database says."""
    return next((f"; {words}" for cause, words in _ADVICE.items() if cause in problem), "")
