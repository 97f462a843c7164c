"""All sessions of a gateway: open, find, restore from the pool, reward, finish, time out.

The pool is the truth; the registry holds what is needed to continue quickly. Everything that uses the pool
runs in threads. Calls that write at the same time share a commit there (`pool.commits`).

Invariants
* A session is opened or restored once, however many calls wait for it.
* A session is finished only after every step that was accepted for it is committed.
* A step whose write failed removes its session from memory: the next call restores it from the pool.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from stepwell.config.gateway import GatewayConfig
from stepwell.core import JSON, Status, Step, Task, make_id
from stepwell.core.errors import InfraError, InputError, StepwellError
from stepwell.pool import Filter, Pool, StoredTrajectory
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.chat import GatewayCaller
from stepwell.services.gateway.history import History
from stepwell.services.gateway.sessions import GatewaySession, decide_outcome, restore_session

T = TypeVar("T")
TAG = "gateway"
_AUTOMATIC = "automatic"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of a session that is created before its first call."""

    task: Task | None = None
    group: str = ""
    group_size: int = 1
    channel: str | None = None
    tags: tuple[str, ...] = ()


class SessionRegistry:
    """The sessions of one gateway. Lives on one event loop."""

    def __init__(
        self, pool: Pool, config: GatewayConfig, prompt_extra: str, tags: Iterable[str] = ()
    ) -> None:
        self.pool = pool
        self.config = config
        self.sessions: dict[str, GatewaySession] = {}
        self.num_finished = 0
        self._prompt_extra = prompt_extra
        self._tags = (TAG, *tags)
        self._threads = ThreadPoolExecutor(config.num_pool_threads, "stepwell-pool")
        self._opening: dict[str, asyncio.Task[GatewaySession]] = {}
        self._current: dict[str, str] = {}  # by key: the open session of callers that name none
        # sessions of an earlier process: number of steps, and since when they are silent
        self._left_open: dict[str, tuple[int, float]] = {}
        self._writing: dict[str, set[asyncio.Future[Any]]] = {}

    async def run_in_thread(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Run a pool operation in a thread."""
        try:
            return await self._submit(partial(function, *args, **options))
        except InfraError as error:
            raise ServiceError(
                ErrorKind.UNAVAILABLE, f"the pool does not respond: {error}", retry_after_s=1.0
            ) from error

    def _submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        self._threads.shutdown()

    async def resume(self) -> int:
        """Note the sessions that an earlier process left open. Return their number."""
        where = Filter(is_open=True, tags=(TAG,))
        entries = await self.run_in_thread(lambda: list(self.pool.find(where)))
        for entry in entries:
            self._left_open[entry.id] = (entry.num_steps, time.monotonic())
            if _AUTOMATIC in entry.tags:
                self._current[entry.id.removeprefix(f"{_AUTOMATIC}.").rpartition("-")[0]] = entry.id
        return len(entries)

    async def get_or_open(self, caller: GatewayCaller) -> GatewaySession:
        """The session that a call belongs to. Opens it if needed."""
        id_ = caller.session or self.get_current_id(caller.key_name)
        session = self.sessions.get(id_)
        if session is None:
            options = SessionOptions(tags=() if caller.session else (_AUTOMATIC,))
            session = await self._open_once(id_, self._find_or_begin(id_, caller.key_name, options))
        return _require_owner(session, caller.key_name)

    def get_open(self, caller: GatewayCaller) -> GatewaySession:
        """The caller's open session, without waiting for the event loop."""
        id_ = caller.session or self._current.get(caller.key_name, "")
        session = self.sessions.get(id_)
        if session is None:
            stored = self._load_stored(id_)
            if stored is None or not stored.is_open:
                raise ServiceError(ErrorKind.NOT_FOUND, f"there is no open session {id_!r}")
            session = self._restore_now(stored)
        return _require_owner(session, caller.key_name)

    def get_current_id(self, key_name: str) -> str:
        """The id of a key's open session."""
        id_ = self._current.get(key_name)
        if id_ is None:
            id_ = self._current[key_name] = make_id(f"{_AUTOMATIC}.{key_name}")
        return id_

    async def open_session(self, id_: str, key_name: str, options: SessionOptions) -> GatewaySession:
        """Open a session with its own task. The same call again returns the same session."""
        session = await self._open_once(id_, self._find_or_begin(id_, key_name, options))
        _check_owner(id_, session.owner, key_name)
        if options.task is not None or options.group:  # it may exist already, with other options
            await self.run_in_thread(self._begin_session, id_, key_name, options)
        return session

    async def find_session(self, id_: str, key_name: str) -> GatewaySession | StoredTrajectory:
        """A session that exists, open or over."""
        session = self.sessions.get(id_)
        if session is not None:
            return _require_owner(session, key_name)
        stored = await self.run_in_thread(self._load_stored, id_) if _NAME.fullmatch(id_) else None
        if stored is None:
            raise ServiceError(ErrorKind.NOT_FOUND, f"there is no session {id_!r:.140}")
        _check_owner(id_, str(stored.source.get("key", "")), key_name)
        if not stored.is_open:
            return stored
        return await self._open_once(id_, self._restore_session(stored))

    async def write_steps(self, session: GatewaySession, first: int, steps: list[Step]) -> None:
        """Commit steps of a session: directly if that is quick, else in a thread."""
        try:
            if self.pool.is_quick():
                self._append_steps(session, first, steps)
                return
            write = self._submit(partial(self.pool.append, session.id, first, steps))
            writing = self._writing.setdefault(session.id, set())
            writing.add(write)
            write.add_done_callback(partial(self._handle_write_end, session, writing))
            await asyncio.shield(write)
        except StepwellError as error:
            raise ServiceError(
                ErrorKind.UNAVAILABLE, f"the pool did not store the step: {error}", retry_after_s=1.0
            ) from error

    def _append_steps(self, session: GatewaySession, first: int, steps: list[Step]) -> None:
        try:
            self.pool.append(session.id, first, steps)
        except BaseException:
            if not session.is_over:
                self._forget_session(session)
            raise

    async def reward_session(
        self,
        session: GatewaySession | StoredTrajectory,
        value: float,
        step: int | None,
        part: str,
        source: str,
    ) -> None:
        try:
            await self.run_in_thread(self.pool.reward, session.id, value, step=step, part=part, source=source)
        except InputError as error:
            raise ServiceError(
                ErrorKind.INVALID, str(error), param="step" if step is not None else None
            ) from error
        if isinstance(session, GatewaySession):
            session.rewards[step] = value

    async def finish_session(
        self,
        session: GatewaySession,
        status: Status | None,
        error: str = "",
        info: Mapping[str, JSON] | None = None,
    ) -> Status:
        """End a session. Calls still in flight for it will be refused. `info` is stored with it."""
        session.refuse_if_over()
        session.is_over = True
        status, error = decide_outcome(session, status, error)
        try:
            await asyncio.gather(*self._writing.get(session.id, ()), return_exceptions=True)
            await self.run_in_thread(self._write_finish, session, status, error, info or {})
        except BaseException:
            session.is_over = False
            raise
        self._forget_session(session)
        self.num_finished += 1
        return status

    async def finish_silent_sessions(self) -> int:
        """End every session that was silent for too long. Return their number."""
        limit = time.monotonic() - self.config.silent_timeout_s
        silent = [s for s in self.sessions.values() if s.num_running == 0 and s.last_seen_s < limit]
        silent += await self._find_abandoned_sessions(limit)
        for session in silent:
            if not session.is_over:
                await self._finish_silent_session(session)
        return len(silent)

    async def _finish_silent_session(self, session: GatewaySession) -> None:
        message = f"no call for {self.config.silent_timeout_s:g} s"
        status = Status(self.config.on_silence)
        await self.finish_session(session, status, message if status is Status.AGENT_ERROR else "")

    async def _find_abandoned_sessions(self, limit: float) -> list[GatewaySession]:
        """Sessions of an earlier process that nobody uses, neither here nor in another process."""
        late = [id_ for id_, (_, since) in self._left_open.items() if since < limit]
        found: list[GatewaySession] = []
        for id_ in late:
            num_steps, _ = self._left_open.pop(id_)
            stored = await self.run_in_thread(self._load_stored, id_)
            if stored is not None and stored.is_open and stored.entry.num_steps == num_steps:
                found.append(await self._open_once(id_, self._restore_session(stored)))
        return found

    async def _open_once(self, id_: str, opening: Coroutine[Any, Any, GatewaySession]) -> GatewaySession:
        """One task opens a session; other calls that need it wait for the same task."""
        task = self._opening.get(id_)
        if task is None:
            task = self._opening[id_] = asyncio.ensure_future(opening)
            task.add_done_callback(lambda _: self._opening.pop(id_))
        else:
            opening.close()
        return await asyncio.shield(task)

    async def _find_or_begin(self, id_: str, key_name: str, options: SessionOptions) -> GatewaySession:
        if id_ in self.sessions:
            return self.sessions[id_]
        if not _NAME.fullmatch(id_):
            raise ServiceError(
                ErrorKind.INVALID,
                f"{id_!r:.80} is not a session id; use up to 128 letters, digits and any of . _ : -",
                param="session",
            )
        if len(self.sessions) >= self.config.max_sessions:
            raise ServiceError(
                ErrorKind.UNAVAILABLE,
                f"{len(self.sessions)} sessions are open (max_sessions); complete some",
                retry_after_s=5.0,
            )
        stored = await self.run_in_thread(self._load_or_begin, id_, key_name, options)
        if stored is not None:
            if not stored.is_open:
                raise ServiceError(
                    ErrorKind.CONFLICT, f"session {id_!r} is over; start a new one with another id"
                )
            return await self._restore_session(stored)
        session = self.sessions[id_] = GatewaySession(id_, key_name, History(self._prompt_extra))
        return session

    async def _restore_session(self, stored: StoredTrajectory) -> GatewaySession:
        return self.sessions.get(stored.id) or self._restore_now(stored)

    def _restore_now(self, stored: StoredTrajectory) -> GatewaySession:
        self._left_open.pop(stored.id, None)
        session = self.sessions[stored.id] = restore_session(stored, self._prompt_extra)
        return session

    def _load_stored(self, id_: str) -> StoredTrajectory | None:
        if not self.pool.has(id_):
            return None
        stored = self.pool.get(id_, with_branches=True)
        if stored.source.get("service") != TAG:
            raise ServiceError(
                ErrorKind.CONFLICT, f"trajectory {id_!r} is in the pool but is not a session; use another id"
            )
        return stored

    def _load_or_begin(self, id_: str, key_name: str, options: SessionOptions) -> StoredTrajectory | None:
        """A session in the pool. If it was not there, begin it and return None."""
        stored = self._load_stored(id_)
        if stored is None:
            self._begin_session(id_, key_name, options)
        return stored

    def _begin_session(self, id_: str, key_name: str, options: SessionOptions) -> None:
        try:
            self.pool.begin(
                options.task or Task(self.config.env, {"session": id_}),
                id=id_,
                group=options.group,
                group_size=options.group_size,
                channel=options.channel or self.config.channel,
                source={"service": TAG, "key": key_name},
                tags=(*self._tags, *options.tags),
            )
        except InputError as error:
            raise ServiceError(ErrorKind.INVALID, f"the session cannot be started: {error}") from error

    def _write_finish(
        self, session: GatewaySession, status: Status, error: str, info: Mapping[str, JSON]
    ) -> None:
        path = session.select_path()
        if session.rewards:  # with rewards for some steps, the other steps get zero
            last = path[-1:] if None in session.rewards else []
            for number in path:
                if number not in session.rewards and number not in last:
                    self.pool.reward(session.id, 0.0, step=number, source="completed")
        timings = {"wall_s": max(0.0, time.time() - session.created_s)}
        summary = {**info, **session.summarize()}
        self.pool.finish(session.id, status, error=error, path=path, timings=timings, info=summary)

    def _handle_write_end(
        self, session: GatewaySession, writing: set[asyncio.Future[Any]], write: asyncio.Future[Any]
    ) -> None:
        writing.discard(write)
        if not writing and self._writing.get(session.id) is writing:
            del self._writing[session.id]
        if not write.cancelled() and write.exception() is not None and not session.is_over:
            self._forget_session(session)

    def _forget_session(self, session: GatewaySession) -> None:
        if self.sessions.get(session.id) is session:
            del self.sessions[session.id]
        if self._current.get(session.owner) == session.id:
            del self._current[session.owner]

    def count_sessions(self) -> dict[str, JSON]:
        return {"num_open": len(self.sessions) + len(self._left_open), "num_finished": self.num_finished}


def _require_owner(session: GatewaySession, key_name: str) -> GatewaySession:
    _check_owner(session.id, session.owner, key_name)
    return session


def _check_owner(id_: str, owner: str, key_name: str) -> None:
    if owner and owner != key_name:
        raise ServiceError(ErrorKind.FORBIDDEN, f"session {id_!r} belongs to another key", param="session")
