"""Sessions of the environment service. A session is one environment, one caller, one thread.

    create ─► EnvSession(env, thread, owner) ─► run(sessions, work) … ─► close (by caller or after silence)

A session never leaves its thread: GL contexts and simulators belong to threads. Only environments that are
quick by their own word (`Env.is_quick`) take their turns on the event loop, because two changes of threads
cost more than such a turn. Sessions share nothing: if one environment raises, hangs or gets a senseless call,
no other session notices.

Invariants
* One session is used by one call at a time, in order of arrival. A call on many sessions takes their locks in
  one order, so two calls never wait for each other.
* Only its owner finds a session; for others it does not exist.
* An environment that takes longer than `call_timeout_s` is abandoned with its thread, and so are the other
  sessions of that thread; their callers get an error. `num_stuck` counts such threads while they hang, since
  a thread cannot be stopped. They count against the caller whose call hangs: with `max_stuck` of them
  it opens no further environment until one returns. Other callers notice nothing.
* A turn is taken on the event loop only after one that took less than `_QUICK_S`. The loop waits for other
  environments that were as quick, `_MAX_WAIT_S` at most: waking it by its own queue of events costs more than
  their turn. Slower ones are awaited, so that other callers are served meanwhile.
* The number of open environments, in total and per owner, never exceeds the limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from stepwell.config.env_service import EnvServiceConfig
from stepwell.envs.env_thread import EnvThread
from stepwell.envs.turns import Turn
from stepwell.services.errors import ErrorKind, ServiceError

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_CHECK_S = 5.0
_QUICK_S, _MAX_WAIT_S = 0.001, 0.002


class SessionThread(EnvThread):
    """A thread of sessions. `owner` is the caller of its current or last job."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stepwell-envs-{number}")
        self.number, self.num_sessions, self.owner = number, 0, ""

    def submit_for(self, owner: str, do: Callable[[], T]) -> Future[T]:
        """Run a job for a caller, after the jobs submitted before."""

        def run() -> T:
            self.owner = owner
            return do()

        return self.submit(run)


@dataclass(slots=True)
class EnvSession:
    """One environment, its owner, and its last turn (for a caller whose connection broke)."""

    id: str
    owner: str
    env_name: str
    env: Any
    thread: SessionThread
    last_used_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0  # that hold the lock or wait for it
    num_turns: int = 0
    last: Turn | None = None
    last_call_s: float = math.inf  # how long the environment took
    is_closed: bool = False
    is_quick: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_quick = vars(type(self.env)).get("is_quick", False)  # not inherited: a subclass may do more


class EnvSessions:
    """All sessions of a service. Lives on one event loop; environments run in the threads."""

    def __init__(self, config: EnvServiceConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._open: dict[str, EnvSession] = {}
        self._num_opening: dict[str, int] = {}
        self._threads = [SessionThread(number) for number in range(config.num_threads)]
        self._watcher: asyncio.Task[None] | None = None
        self._stuck: Counter[str] = Counter()  # threads that hang, by caller
        self.num_expired = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_ready(self) -> bool:
        """Whether another environment could be opened."""
        return self._stuck[""] < self._config.max_stuck and len(self) < self._config.max_sessions

    @property
    def num_stuck(self) -> int:
        """Threads that hang in an environment."""
        return self._stuck.total()

    def start(self) -> None:
        """Start watching for silent sessions."""
        self._watcher = asyncio.create_task(self._watch_expiry(), name="env sessions: expiry")

    async def stop(self) -> None:
        """Close all environments."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait([self._watcher])
        await self.close(list(self._open.values()))
        for thread in self._threads:
            thread.stop()

    async def create(
        self, owner: str, env_name: str, make: Callable[[], Any], count: int
    ) -> list[EnvSession]:
        """Open `count` environments made by `make`: all of them, or none."""
        self._check_capacity(owner, count)
        self._num_opening[owner] = self._num_opening.get(owner, 0) + count
        opened: list[EnvSession] = []
        try:
            for _ in range(count):
                thread = min(self._threads, key=lambda thread: thread.num_sessions)
                thread.num_sessions += 1
                try:
                    env = await self.run_in_thread(thread, make, owner)
                except BaseException:
                    thread.num_sessions -= 1
                    raise
                session = EnvSession(secrets.token_urlsafe(16), owner, env_name, env, thread, self._clock())
                opened.append(session)
        except BaseException:
            await self.close(opened)
            raise
        finally:
            self._num_opening[owner] -= count
            if not self._num_opening[owner]:
                del self._num_opening[owner]
        self._open |= {session.id: session for session in opened}
        return opened

    def find(self, owner: str, ids: Sequence[str]) -> list[EnvSession]:
        """The owner's sessions. Counts as a sign of life of each. Raises `ServiceError` if one is missing."""
        if len(ids) > 1 and len(set(ids)) != len(ids):
            raise ServiceError(ErrorKind.INVALID, "a session is named twice in one call", param="sessions")
        now, sessions = self._clock(), []
        for name in ids:
            session = self._open.get(name)
            if session is None or session.owner != owner:
                raise ServiceError(
                    ErrorKind.NOT_FOUND,
                    f"there is no session {name[:64]!r}; it was closed, has expired or never existed",
                    param="sessions",
                )
            session.last_used_s = now
            sessions.append(session)
        return sessions

    def run_now(self, sessions: Sequence[EnvSession], work: Callable[[EnvSession, int], T]) -> list[T] | None:
        """As `run`, on the event loop; None if an environment is not quick, or is in use.

        For sessions that were just found, and only for turns and resets to given tasks.
        """
        took_s = 0.0
        for session in sessions:
            took_s += session.last_call_s
            if not session.is_quick or took_s >= _QUICK_S or session.num_calls:
                return None
        results, start_s = [], time.perf_counter()
        for index, session in enumerate(sessions):
            results.append(work(session, index))
            end_s = time.perf_counter()
            session.last_call_s, start_s = end_s - start_s, end_s
        return results

    async def run(self, sessions: Sequence[EnvSession], work: Callable[[EnvSession, int], T]) -> list[T]:
        """Call `work(session, index)` for each session, threads in parallel. Results are in order."""
        held = []
        for session in sessions:
            session.num_calls += 1
        try:
            for session in sorted(sessions, key=attrgetter("id")):
                await session.lock.acquire()
                held.append(session)
            for session in sessions:
                if session.is_closed:
                    raise ServiceError(
                        ErrorKind.NOT_FOUND, f"session {session.id!r} was closed during this call"
                    )
            results = await self._run_by_thread(sessions, work)
        finally:
            for session in held:
                session.lock.release()
            for session in sessions:
                session.num_calls -= 1
        now = self._clock()
        for session in sessions:
            session.last_used_s = now
        return results

    async def _run_by_thread(
        self, sessions: Sequence[EnvSession], work: Callable[[EnvSession, int], T]
    ) -> list[T]:
        done: dict[int, T] = {}

        def run_all(indices: list[int]) -> None:
            for index in indices:
                session, start_s = sessions[index], time.perf_counter()
                done[index] = work(session, index)
                session.last_call_s = time.perf_counter() - start_s

        were_quick = sum([session.last_call_s for session in sessions]) < _QUICK_S
        by_thread: dict[SessionThread, list[int]] = {}
        for index, session in enumerate(sessions):
            by_thread.setdefault(session.thread, []).append(index)
        owner = sessions[0].owner
        jobs = [
            (thread, thread.submit_for(owner, partial(run_all, indices)))
            for thread, indices in by_thread.items()
        ]
        if were_quick:
            _wait_briefly([job for _, job in jobs])
        waiting = [self._finish_job(thread, job) for thread, job in jobs if not job.done()]
        results = await asyncio.gather(*waiting, return_exceptions=True) if waiting else []
        for problem in [*results, *(job.exception() for _, job in jobs if job.done())]:
            if problem is not None:
                raise problem
        return [done[index] for index in range(len(sessions))]

    async def close(self, sessions: Sequence[EnvSession]) -> None:
        """Close environments. Errors while closing are logged and change nothing."""
        for session in sessions:
            self._open.pop(session.id, None)
            if session.is_closed:
                continue
            session.is_closed = True
            session.thread.num_sessions -= 1
            try:
                await self.run_in_thread(session.thread, session.env.close, session.owner)
            except Exception:
                _log.exception("closing %s failed", session.env_name)

    async def run_in_thread(self, thread: SessionThread | None, do: Callable[[], T], owner: str) -> T:
        """Run something in a thread (None: the least busy one). A call that hangs abandons the thread."""
        if thread is None:
            self._check_stuck(owner)
        thread = thread or min(self._threads, key=lambda thread: thread.num_sessions)
        return await self._finish_job(thread, thread.submit_for(owner, do))

    async def _finish_job(self, thread: SessionThread, job: Future[T]) -> T:
        future = asyncio.wrap_future(job)
        await asyncio.wait([future], timeout=self._config.call_timeout_s)
        if future.done():
            return future.result()
        future.add_done_callback(asyncio.Future.exception)  # nobody asks for it any more
        self._abandon_thread(thread)
        raise ServiceError(
            ErrorKind.UNAVAILABLE,
            f"the environment took longer than call_timeout_s ({self._config.call_timeout_s:g} s)",
        )

    def _abandon_thread(self, thread: SessionThread) -> None:
        if self._threads[thread.number] is not thread:
            return  # another call noticed it first
        owner, loop = thread.owner, asyncio.get_running_loop()
        self._stuck[owner] += 1
        _log.error("a call in thread %d takes too long; the thread is abandoned", thread.number)
        self._threads[thread.number] = SessionThread(thread.number)
        thread.stop(partial(_call_in_loop, loop, partial(self._release_stuck, owner)))
        for session in [session for session in self._open.values() if session.thread is thread]:
            session.is_closed = True
            del self._open[session.id]

    def _release_stuck(self, owner: str) -> None:
        self._stuck[owner] -= 1

    def _check_stuck(self, owner: str) -> None:
        if self._stuck[owner] >= self._config.max_stuck:
            raise ServiceError(
                ErrorKind.UNAVAILABLE,
                f"{self._stuck[owner]} of your calls hang (max_stuck is {self._config.max_stuck}); "
                "try again when one has returned",
                retry_after_s=5.0,
            )

    def _check_capacity(self, owner: str, count: int) -> None:
        self._check_stuck(owner)
        held = len(self._open) + sum(self._num_opening.values())
        if held + count > self._config.max_sessions:
            raise ServiceError(
                ErrorKind.LIMITED,
                f"{held} environments are open and max_sessions is {self._config.max_sessions}; close some",
                retry_after_s=1.0,
            )
        own = sum(session.owner == owner for session in self._open.values())
        own += self._num_opening.get(owner, 0)
        if own + count > self._config.max_sessions_per_key:
            raise ServiceError(
                ErrorKind.LIMITED,
                f"{own} environments of this key are open and max_sessions_per_key is "
                f"{self._config.max_sessions_per_key}; close some",
                retry_after_s=1.0,
            )

    async def close_expired(self) -> None:
        """Close the sessions that fell silent."""
        before = self._clock() - self._config.session_timeout_s
        silent = [s for s in self._open.values() if s.last_used_s < before and not s.lock.locked()]
        self.num_expired += len(silent)
        await self.close(silent)

    async def _watch_expiry(self) -> None:
        while True:
            await asyncio.sleep(min(_MAX_CHECK_S, self._config.session_timeout_s / 4))
            await self.close_expired()


def _call_in_loop(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the service has ended
        loop.call_soon_threadsafe(what)


def _wait_briefly(jobs: Sequence[Future[None]]) -> None:
    """Wait for jobs in other threads, without the event loop."""
    until = time.perf_counter() + _MAX_WAIT_S
    with contextlib.suppress(TimeoutError):
        for job in jobs:
            job.exception(max(0.0, until - time.perf_counter()))
