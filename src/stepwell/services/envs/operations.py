"""The operations that a caller sends in frames. Each acts on many sessions at once.

    op         header                                        arrays   reply
    describe   env, options                                           description
    tasks      env, options, seeds                                    tasks
    create     env, options, count                                    sessions, session_timeout_s, takes_turns
    reset      sessions, tasks and/or seeds                           turns
    step       sessions, names (or chunks), turns            chunks   turns
    turn       turn: [session, number, names, with_state]             turn, or turns
    state      sessions                                               states
    oracle     sessions                                               actions
    render     sessions                                               images
    load                                                              num_sessions
    heartbeat  sessions                                               alive
    close      sessions                                               closed

`with_state` asks reset and step for the true state. `images: "png"` asks for PNG instead of raw images.
`plain: true` asks for a reply `turn` instead of `turns` where one session took a turn of text alone. The
operation `turn` is `step` with that, for one session; `takes_turns` says that the service knows it.
`turns` numbers the turns of each session since its reset. The same number again gets the same reply again,
so a call whose reply was lost can be repeated.

Invariants
* A mistake in the call itself raises `ServiceError`, and nothing was done. An error in one environment is
  that session's error among the turns; the other environments of the call have taken their turn.
* A caller opens environments that the service names, never one by an import path of the caller's choice.
* Options that name resources of the host (`envs/options.py`), and options that the host has set, belong to
  the host. Callers never see their values.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np

from stepwell.config.env_service import EnvServiceConfig
from stepwell.core import EncodingError, StepwellError, Task
from stepwell.envs.options import list_host_options
from stepwell.envs.registry import ENVS, find_env_type, make_env
from stepwell.envs.remote import wire
from stepwell.envs.remote.wire import Frame
from stepwell.envs.turns import Turn, read_state
from stepwell.services.caller_options import read_caller_options
from stepwell.services.envs.session_work import ask_oracle, query_env, reset_session, step_session
from stepwell.services.envs.sessions import EnvSession, EnvSessions
from stepwell.services.errors import ErrorKind, ServiceError

T = TypeVar("T")
Work = Callable[[EnvSession, int], Turn]
MAX_SEED = 2**63
_MAX_DESCRIPTIONS = 256
_TEXT, _PLAIN = frozenset([str]), {"plain": True}
_MISTAKES = (StepwellError, ValueError, RecursionError)


class EnvOperations:
    """Handles frames."""

    def __init__(self, config: EnvServiceConfig, sessions: EnvSessions) -> None:
        self.config, self.sessions = config, sessions
        self.names = config.envs or tuple(ENVS)
        self._descriptions: dict[str, dict[str, Any]] = {}
        self._handlers: dict[str, Callable[[str, Frame], Frame | Awaitable[Frame]]] = {
            "describe": self._handle_describe,
            "tasks": self._handle_tasks,
            "create": self._handle_create,
            "reset": self._handle_reset,
            "step": self._handle_step,
            "turn": self._handle_turn,
            "state": self._handle_state,
            "oracle": self._handle_oracle,
            "render": self._handle_render,
            "load": self._handle_load,
            "heartbeat": self._handle_heartbeat,
            "close": self._handle_close,
        }

    def handle_frame(self, owner: str, frame: Frame) -> Frame | Awaitable[Frame]:
        """The reply to one frame of one caller; at once if nothing is to be waited for.

        Raises `ServiceError`, now or when it is awaited.
        """
        handle = self._handlers.get(frame.op)
        if handle is None:
            raise ServiceError(
                ErrorKind.INVALID, f"op {frame.op[:64]!r} is unknown; use one of {', '.join(self._handlers)}"
            )
        try:
            reply = handle(owner, frame)
        except ServiceError:
            raise
        except _MISTAKES as error:  # not by `convert_errors`, which takes longer than this
            raise ServiceError(ErrorKind.INVALID, str(error)) from error
        if not isinstance(reply, Frame):
            return self._await_reply(frame, reply)
        return self._finish_reply(frame, reply) if reply.arrays else reply

    async def _await_reply(self, frame: Frame, reply: Awaitable[Frame]) -> Frame:
        with convert_errors():
            return self._finish_reply(frame, await reply)

    def _finish_reply(self, frame: Frame, reply: Frame) -> Frame:
        """The reply with its images as asked for, unless it is too large."""
        if frame.header.get("images") == "png":
            reply = wire.encode_images(reply)
        size = sum([array.nbytes for array in reply.arrays])
        if size > self.config.max_reply_bytes:
            raise ServiceError(
                ErrorKind.TOO_LARGE,
                f"the reply has {size} bytes, more than max_reply_bytes ({self.config.max_reply_bytes}); "
                "ask for fewer sessions at once, smaller images, or images='png'",
            )
        return reply

    async def reset(
        self,
        owner: str,
        ids: Sequence[str],
        tasks: Sequence[Task] | None,
        seeds: Sequence[int] | None,
        with_state: bool,
    ) -> list[Turn]:
        """Start one episode per session, from its task or its seed (or both)."""
        sessions, work = self._plan_reset(owner, ids, tasks, seeds, with_state)
        return await self.sessions.run(sessions, work)

    def _plan_reset(
        self,
        owner: str,
        ids: Sequence[str],
        tasks: Sequence[Task] | None,
        seeds: Sequence[int] | None,
        with_state: bool,
    ) -> tuple[list[EnvSession], Work]:
        sessions = self.sessions.find(owner, ids)
        _check_lengths(len(ids), tasks=tasks, seeds=seeds)
        if tasks is None and seeds is None:
            raise ServiceError(ErrorKind.INVALID, "reset needs tasks, seeds or both", param="tasks")
        return sessions, partial(reset_session, tasks, seeds, with_state)

    async def step(
        self,
        owner: str,
        ids: Sequence[str],
        actions: Sequence[Any],
        turns: Sequence[int] | None,
        with_state: bool,
    ) -> list[Turn]:
        """Play one turn in each session."""
        sessions, work = self._plan_step(owner, ids, actions, turns, with_state)
        return await self.sessions.run(sessions, work)

    def _plan_step(
        self,
        owner: str,
        ids: Sequence[str],
        actions: Sequence[Any],
        turns: Sequence[int] | None,
        with_state: bool,
    ) -> tuple[list[EnvSession], Work]:
        sessions = self.sessions.find(owner, ids)
        if len(actions) != len(ids) or (turns is not None and len(turns) != len(ids)):
            _check_lengths(len(ids), actions=actions, turns=turns)
        return sessions, partial(step_session, actions, turns, with_state)

    async def create(self, owner: str, name: Any, options: Any, count: int) -> list[EnvSession]:
        """Open environments."""
        settings = self._read_options(name, options)
        if not 1 <= count <= self.config.max_batch:
            raise ServiceError(
                ErrorKind.INVALID, f"count must be 1 to {self.config.max_batch}, got {count}", param="count"
            )
        return await self.sessions.create(owner, name, partial(_open_env, name, settings), count)

    def _read_options(self, name: Any, options: Any) -> Any:
        return read_caller_options(name, options, self.names, self.config.env_options, "envs")

    def _list_public_options(self, name: str, settings: Any) -> dict[str, Any]:
        """The options in force that do not belong to the host."""
        hidden = {*list_host_options(type(settings)), *self.config.env_options.get(name, {})}
        return {option: v for option, v in settings.model_dump(mode="json").items() if option not in hidden}

    async def _handle_describe(self, owner: str, frame: Frame) -> Frame:
        name, options = frame.header.get("env"), frame.header.get("options", {})
        settings = self._read_options(name, options)
        key = f"{name} {json.dumps(settings.model_dump(mode='json'), sort_keys=True)}"
        if key not in self._descriptions:
            description = await self.sessions.run_in_thread(
                None, partial(_describe_env, str(name), settings), owner
            )
            if len(self._descriptions) >= _MAX_DESCRIPTIONS:
                self._descriptions.clear()
            self._descriptions[key] = description | {
                "options": self._list_public_options(str(name), settings)
            }
        return Frame("description", self._descriptions[key])

    async def _handle_tasks(self, owner: str, frame: Frame) -> Frame:
        settings = self._read_options(frame.header.get("env"), frame.header.get("options", {}))
        seeds = self._read_seeds(frame, needed=True)
        assert seeds is not None
        kind = find_env_type(frame.header["env"])
        tasks = await self.sessions.run_in_thread(
            None, lambda: [kind.make_task(settings, seed) for seed in seeds], owner
        )
        return Frame("tasks", wire.pack_tasks(tasks))

    async def _handle_create(self, owner: str, frame: Frame) -> Frame:
        header, count = frame.header, frame.header.get("count", 1)
        if type(count) is not int:
            raise ServiceError(ErrorKind.INVALID, "count must be a whole number", param="count")
        opened = await self.create(owner, header.get("env"), header.get("options", {}), count)
        ids = [session.id for session in opened]
        timeout_s = self.config.session_timeout_s
        return Frame("sessions", {"sessions": ids, "session_timeout_s": timeout_s, "takes_turns": True})

    def _handle_reset(self, owner: str, frame: Frame) -> Frame | Awaitable[Frame]:
        header = frame.header
        tasks = wire.unpack_tasks(header) if "tasks" in header else None
        ids, seeds = self._read_session_ids(frame), self._read_seeds(frame)
        sessions, work = self._plan_reset(owner, ids, tasks, seeds, header.get("with_state") is True)
        turns = None if tasks is None else self.sessions.run_now(sessions, work)  # a seed's task takes longer
        return self._await_turns(header, sessions, work) if turns is None else _write_turns(header, turns)

    def _handle_step(self, owner: str, frame: Frame) -> Frame | Awaitable[Frame]:
        header = frame.header
        actions, numbers = wire.unpack_actions(header, frame.arrays), header.get("turns")
        if numbers is not None and not _are_whole_numbers(numbers):
            raise ServiceError(
                ErrorKind.INVALID, "turns must be whole numbers, one per session", param="turns"
            )
        ids = self._read_session_ids(frame)
        sessions, work = self._plan_step(owner, ids, actions, numbers, header.get("with_state") is True)
        turns = self.sessions.run_now(sessions, work)
        return self._await_turns(header, sessions, work) if turns is None else _write_turns(header, turns)

    def _handle_turn(self, owner: str, frame: Frame) -> Frame | Awaitable[Frame]:
        id, number, names, with_state = wire.read_turn_call(frame.header)
        sessions = self.sessions.find(owner, [id])
        work = partial(step_session, [names], [number], with_state)
        turns = self.sessions.run_now(sessions, work)
        return self._await_turns(_PLAIN, sessions, work) if turns is None else _write_turns(_PLAIN, turns)

    async def _await_turns(self, header: dict[str, Any], sessions: Sequence[EnvSession], work: Work) -> Frame:
        return _write_turns(header, await self.sessions.run(sessions, work))

    async def _handle_state(self, owner: str, frame: Frame) -> Frame:
        sessions = self.sessions.find(owner, self._read_session_ids(frame))
        states = await self.sessions.run(sessions, partial(query_env, read_state))
        return Frame("states", {"states": states})

    async def _handle_oracle(self, owner: str, frame: Frame) -> Frame:
        sessions = self.sessions.find(owner, self._read_session_ids(frame))
        return Frame(
            "actions", *wire.pack_actions(await self.sessions.run(sessions, partial(query_env, ask_oracle)))
        )

    async def _handle_render(self, owner: str, frame: Frame) -> Frame:
        sessions = self.sessions.find(owner, self._read_session_ids(frame))
        images = await self.sessions.run(sessions, partial(query_env, lambda env: np.asarray(env.render())))
        return Frame("images", {}, images)

    def _handle_load(self, owner: str, frame: Frame) -> Frame:
        return Frame("load", {"num_sessions": len(self.sessions)})

    def _handle_heartbeat(self, owner: str, frame: Frame) -> Frame:
        self.sessions.find(owner, self._read_session_ids(frame))
        return Frame("alive", {"session_timeout_s": self.config.session_timeout_s})

    async def _handle_close(self, owner: str, frame: Frame) -> Frame:
        sessions = self.sessions.find(owner, self._read_session_ids(frame))
        await self.sessions.close(sessions)
        return Frame("closed", {"count": len(sessions)})

    def _read_session_ids(self, frame: Frame) -> list[str]:
        ids = frame.header.get("sessions")
        if not isinstance(ids, list) or not ids or not _TEXT.issuperset(map(type, ids)):
            raise ServiceError(
                ErrorKind.INVALID, "sessions must be a list of at least one id", param="sessions"
            )
        if len(ids) > self.config.max_batch:
            raise ServiceError(
                ErrorKind.INVALID,
                f"{len(ids)} sessions; max_batch is {self.config.max_batch}",
                param="sessions",
            )
        return ids

    def _read_seeds(self, frame: Frame, *, needed: bool = False) -> list[int] | None:
        seeds: Any = frame.header.get("seeds")
        if seeds is None and not needed:
            return None
        if not _are_whole_numbers(seeds) or any(seed >= MAX_SEED for seed in seeds):
            raise ServiceError(
                ErrorKind.INVALID, "seeds must be whole numbers from 0 to 2^63 - 1", param="seeds"
            )
        if len(seeds) > self.config.max_batch:
            raise ServiceError(
                ErrorKind.INVALID, f"{len(seeds)} seeds; max_batch is {self.config.max_batch}", param="seeds"
            )
        return list(seeds)


def _write_turns(header: dict[str, Any], turns: list[Turn]) -> Frame:
    if header.get("plain") is True and len(turns) == 1 and (plain := wire.pack_plain_turn(turns[0])):
        return Frame("turn", plain)
    return Frame("turns", *wire.pack_turns(turns))


def _check_lengths(num_sessions: int, **lists: Sequence[Any] | None) -> None:
    for name, values in lists.items():
        if values is not None and len(values) != num_sessions:
            message = f"{len(values)} {name} for {num_sessions} sessions"
            raise ServiceError(ErrorKind.INVALID, message, param=name)


def _are_whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all([type(value) is int and value >= 0 for value in values])


def _open_env(name: str, settings: Any) -> Any:
    kind = find_env_type(name)
    if kind.is_robot:
        kind.require()  # a missing simulator is reported now, not at the first reset
    return make_env(name, settings)


def _describe_env(name: str, settings: Any) -> dict[str, Any]:
    """What a caller must know to stand in for an environment."""
    env = _open_env(name, settings)
    try:
        description = wire.write_description(env.description)
        return {
            "name": env.name,
            "summary": (type(env).__doc__ or "").strip().split("\n")[0],
            "is_robot": env.is_robot,
            "is_deterministic": bool(env.is_deterministic),
            "has_oracle": bool(env.has_oracle),
            "has_process": bool(env.has_process),
            "description": description,
            "world": description,  # its former name, for clients of one release before
        }
    finally:
        env.close()


@contextmanager
def convert_errors() -> Iterator[None]:
    """Turn a caller's mistakes into `ServiceError`, with the original error as its cause."""
    try:
        yield
    except ServiceError:
        raise
    except _MISTAKES as error:
        raise ServiceError(ErrorKind.INVALID, str(error)) from error


def read_frame(body: bytes | bytearray) -> Frame:
    """The frame in a request body. Raises `ServiceError` if it is not a frame."""
    try:
        return wire.decode(body)
    except EncodingError as error:
        raise ServiceError(ErrorKind.INVALID, f"the body is not a Stepwell frame: {error}") from error
