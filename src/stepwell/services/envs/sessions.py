"""Sessions: each is one copy of a world, held for one caller, in one thread, for as long as it is used.

    create ─► Session(env, lane, owner) ─► run(sessions, work) … ─► close, or silence ─► closed

A lane is one thread, and a session never leaves its lane: GL contexts and simulators belong to threads.
Sessions share nothing: what one world does (raise, hang, be asked for nonsense) another never notices.

Invariants
* One session is worked on by one call at a time, in order of arrival; a call on many takes their locks in
  one order, so that two calls never wait for each other.
* A session is found by its owner alone; to others it does not exist.
* An environment that takes longer than `call_timeout_s` is given up with its thread, and the other sessions
  of that lane with it; they are told so. `num_stuck` counts such threads for as long as they hang, since
  nobody can end them. They are counted against the caller whose call hangs: one with `max_stuck` of them
  opens no further environment until one comes back, and other callers notice nothing.
* The worlds open at once, and of one owner, are never more than the limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from stepwell.config.env_service import EnvServiceConfig
from stepwell.core import EnvError
from stepwell.envs.robots.cameras import release
from stepwell.envs.turns import Turn
from stepwell.services.gateway.exchange import Kind, Refused

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MANY_LOOKS_S = 5.0


class Lane:
    """One thread that does jobs in order. A daemon: one that hangs does not keep the process from ending."""

    def __init__(self, number: int) -> None:
        self.number, self.num_sessions = number, 0
        self.owner = ""  # whose job it does now, or did last
        self._on_end: Callable[[], None] | None = None
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any], str] | None]
        self._jobs = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"stepwell-envs-{number}", daemon=True).start()

    def submit(self, do: Callable[[], T], owner: str) -> Future[T]:
        """Do something for a caller when those before are done."""
        future: Future[T] = Future()
        self._jobs.put((future, do, owner))
        return future

    def stop(self, on_end: Callable[[], None] | None = None) -> None:
        """End after the jobs that wait; `on_end` is then called in the lane's thread."""
        self._on_end = on_end
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, do, self.owner = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(do())
            except SystemExit as error:  # would end the event loop that hears of it
                future.set_exception(EnvError(f"the environment called sys.exit({error})"))
            except BaseException as error:  # it is the caller's, whatever it is
                future.set_exception(error)
        release()
        if self._on_end is not None:
            self._on_end()


@dataclass(slots=True)
class Session:
    """One world, its owner, and the last thing it answered (for a caller whose connection broke)."""

    id: str
    owner: str
    env_name: str
    env: Any
    lane: Lane
    used_s: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_turns: int = 0
    last: Turn | None = None
    is_closed: bool = False


class Sessions:
    """All sessions of a service. Lives on one event loop; worlds run in the lanes' threads."""

    def __init__(self, config: EnvServiceConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._open: dict[str, Session] = {}
        self._num_opening: dict[str, int] = {}
        self._lanes = [Lane(number) for number in range(config.num_threads)]
        self._reaper: asyncio.Task[None] | None = None
        self._stuck: Counter[str] = Counter()  # threads that hang, by caller
        self.num_expired = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_ready(self) -> bool:
        """Whether a new world could be opened."""
        return self._stuck[""] < self._config.max_stuck and len(self) < self._config.max_sessions

    @property
    def num_stuck(self) -> int:
        """Threads that hang in an environment."""
        return self._stuck.total()

    def start(self) -> None:
        """Begin to look for sessions that fell silent."""
        self._reaper = asyncio.create_task(self._reap(), name="env sessions: expiry")

    async def stop(self) -> None:
        """Close every world."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait([self._reaper])
        await self.close(list(self._open.values()))
        for lane in self._lanes:
            lane.stop()

    async def create(self, owner: str, env_name: str, make: Callable[[], Any], count: int) -> list[Session]:
        """`count` worlds made by `make`; all of them, or none."""
        self._check_room(owner, count)
        self._num_opening[owner] = self._num_opening.get(owner, 0) + count
        opened: list[Session] = []
        try:
            for _ in range(count):
                lane = min(self._lanes, key=lambda lane: lane.num_sessions)
                lane.num_sessions += 1
                try:
                    env = await self.work(lane, make, owner)
                except BaseException:
                    lane.num_sessions -= 1
                    raise
                session = Session(secrets.token_urlsafe(16), owner, env_name, env, lane, self._clock())
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

    def find(self, owner: str, ids: Sequence[str]) -> list[Session]:
        """The owner's sessions; a sign of life of each. Refused if one is not there."""
        if len(set(ids)) != len(ids):
            raise Refused(Kind.INVALID, "sessions are named twice in one call", param="sessions")
        found = [self._open.get(name) for name in ids]
        now, sessions = self._clock(), []
        for name, session in zip(ids, found, strict=True):
            if session is None or session.owner != owner:
                raise Refused(
                    Kind.NOT_FOUND,
                    f"there is no session {name[:64]!r}: it was closed or has expired, or never was",
                    param="sessions",
                )
            sessions.append(session)
        for session in sessions:
            session.used_s = now
        return sessions

    async def run(self, sessions: Sequence[Session], work: Callable[[Session, int], T]) -> list[T]:
        """`work(session, place)` for each, lane by lane in parallel; in the order of `sessions`."""
        async with contextlib.AsyncExitStack() as stack:
            for session in sorted(sessions, key=lambda session: session.id):
                await stack.enter_async_context(session.lock)
            for session in sessions:
                if session.is_closed:
                    raise Refused(Kind.NOT_FOUND, f"session {session.id!r} was closed meanwhile")
            by_lane: dict[int, list[int]] = {}
            for place, session in enumerate(sessions):
                by_lane.setdefault(session.lane.number, []).append(place)
            done: dict[int, T] = {}

            def play(places: list[int]) -> None:
                for place in places:
                    done[place] = work(sessions[place], place)

            jobs = [
                self.work(sessions[places[0]].lane, lambda places=places: play(places), sessions[0].owner)
                for places in by_lane.values()
            ]
            results = await asyncio.gather(*jobs, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        now = self._clock()
        for session in sessions:
            session.used_s = now
        return [done[place] for place in range(len(sessions))]

    async def close(self, sessions: Sequence[Session]) -> None:
        """Close worlds; what a world raises while closing is logged and changes nothing."""
        for session in sessions:
            self._open.pop(session.id, None)
            if session.is_closed:
                continue
            session.is_closed = True
            session.lane.num_sessions -= 1
            try:
                await self.work(session.lane, session.env.close, session.owner)
            except Exception:
                _log.exception("closing %s failed", session.env_name)

    async def work(self, lane: Lane | None, do: Callable[[], T], owner: str) -> T:
        """Do something in a lane's thread (None: the least busy one's); a hang gives the lane up."""
        if lane is None:
            self._check_stuck(owner)
        lane = lane or min(self._lanes, key=lambda lane: lane.num_sessions)
        future = asyncio.wrap_future(lane.submit(do, owner))
        try:
            async with asyncio.timeout(self._config.call_timeout_s):
                return await asyncio.shield(future)
        except TimeoutError:
            if future.done() and not future.cancelled() and future.exception() is not None:
                raise  # the world's own, not ours
            self._give_up(lane)
            raise Refused(
                Kind.UNAVAILABLE,
                f"the world took longer than call_timeout_s ({self._config.call_timeout_s:g} s); given up",
            ) from None

    def _give_up(self, lane: Lane) -> None:
        if self._lanes[lane.number] is not lane:
            return  # another call found it out first
        owner, loop = lane.owner, asyncio.get_running_loop()
        self._stuck[owner] += 1
        _log.error("a call in lane %d takes too long; its thread is left behind", lane.number)
        self._lanes[lane.number] = Lane(lane.number)
        lane.stop(partial(_tell_loop, loop, partial(self._come_back, owner)))
        for session in [session for session in self._open.values() if session.lane is lane]:
            session.is_closed = True
            del self._open[session.id]

    def _come_back(self, owner: str) -> None:
        self._stuck[owner] -= 1

    def _check_stuck(self, owner: str) -> None:
        if self._stuck[owner] >= self._config.max_stuck:
            raise Refused(
                Kind.UNAVAILABLE,
                f"{self._stuck[owner]} calls of yours hang (max_stuck is {self._config.max_stuck}); "
                "try again when one has come back",
                retry_after_s=5.0,
            )

    def _check_room(self, owner: str, count: int) -> None:
        self._check_stuck(owner)
        held = len(self._open) + sum(self._num_opening.values())
        if held + count > self._config.max_sessions:
            raise Refused(
                Kind.LIMITED,
                f"{held} worlds are open and max_sessions is {self._config.max_sessions}; close some",
                retry_after_s=1.0,
            )
        own = sum(session.owner == owner for session in self._open.values())
        own += self._num_opening.get(owner, 0)
        if own + count > self._config.max_sessions_per_key:
            raise Refused(
                Kind.LIMITED,
                f"{own} worlds of this key are open and max_sessions_per_key is "
                f"{self._config.max_sessions_per_key}; close some",
                retry_after_s=1.0,
            )

    async def expire(self) -> None:
        """Close the sessions that fell silent."""
        before = self._clock() - self._config.session_timeout_s
        silent = [s for s in self._open.values() if s.used_s < before and not s.lock.locked()]
        self.num_expired += len(silent)
        await self.close(silent)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(_MANY_LOOKS_S, self._config.session_timeout_s / 4))
            await self.expire()


def _tell_loop(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the service has ended meanwhile
        loop.call_soon_threadsafe(what)
