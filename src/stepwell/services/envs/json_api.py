"""The service in JSON, for callers who speak no frames: the same sessions, the same rules.

    POST /sessions            {env, options, count}              ─► {sessions, session_timeout_s}
    POST /sessions/reset      {sessions, seeds and/or tasks}     ─► {turns}
    POST /sessions/step       {sessions, actions}                ─► {turns}
    POST /sessions/heartbeat  {sessions}                         ─► {alive}
    POST /sessions/close      {sessions}                         ─► {closed}

An action is a list of names, or a robot's chunk as a list of lists of numbers. Pictures and arrays come
as base64: pictures as PNG files (`images: "png"`, the default) or as raw bytes with shape and dtype.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from stepwell.core import ArrayState, Task
from stepwell.core.arrays import AnyArray
from stepwell.envs.remote.wire import pack_error, png_bytes
from stepwell.envs.turns import Turn
from stepwell.services.envs.calls import Calls, refusing
from stepwell.services.gateway.exchange import Kind, Refused

Name = Annotated[str, Field(min_length=1, max_length=256)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Number = Annotated[float, Field(ge=-1e30, le=1e30)]


class Body(BaseModel):
    """A body: unknown names are mistakes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class CreateBody(Body):
    """Worlds to open."""

    env: Name
    options: dict[str, Any] = Field(default_factory=dict)
    count: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 1


class TaskBody(Body):
    """A task, as a world makes it."""

    env: Name
    content: dict[str, Any]
    instruction: str = ""
    seed: Seed = 0
    tags: list[Name] = Field(default_factory=list)


class SessionsBody(Body):
    """Which worlds."""

    sessions: Annotated[list[Name], Field(min_length=1)]


class ShownBody(SessionsBody):
    """Which worlds, and how their turns are shown."""

    with_state: bool = False
    images: Literal["png", "raw"] = "png"


class ResetBody(ShownBody):
    """Episodes to start: of tasks, of seeds, or of tasks with the chance of seeds."""

    tasks: list[TaskBody] | None = None
    seeds: list[Seed] | None = None


class StepBody(ShownBody):
    """One turn in each world."""

    actions: list[list[str] | list[list[Number]]]
    turns: list[Seed] | None = None


def json_router(calls: Calls) -> APIRouter:
    """The endpoints."""
    router = APIRouter(prefix="/sessions", tags=["sessions"])

    @router.post("", status_code=201)
    async def create(body: CreateBody, request: Request) -> dict[str, Any]:
        """Open worlds; all of them, or none."""
        with refusing():
            opened = await calls.create(_owner(request), body.env, body.options, body.count)
        told = {"sessions": [session.id for session in opened]}
        return told | {"session_timeout_s": calls.config.session_timeout_s}

    @router.post("/reset")
    async def reset(body: ResetBody, request: Request) -> Response:
        """Start an episode in each world."""
        with refusing():
            given = None if body.tasks is None else [_task(task) for task in body.tasks]
            ids = _ids(calls, body)
            turns = await calls.reset(_owner(request), ids, given, body.seeds, body.with_state)
        return _shown(calls, turns, body.images)

    @router.post("/step")
    async def step(body: StepBody, request: Request) -> Response:
        """One turn in each world."""
        with refusing():
            actions = [_action(action) for action in body.actions]
            ids = _ids(calls, body)
            turns = await calls.step(_owner(request), ids, actions, body.turns, body.with_state)
        return _shown(calls, turns, body.images)

    @router.post("/heartbeat")
    async def heartbeat(body: SessionsBody, request: Request) -> dict[str, Any]:
        """A sign of life: the worlds are still wanted."""
        return {"alive": len(calls.sessions.find(_owner(request), _ids(calls, body)))}

    @router.post("/close")
    async def close(body: SessionsBody, request: Request) -> dict[str, Any]:
        """Close worlds."""
        sessions = calls.sessions.find(_owner(request), _ids(calls, body))
        await calls.sessions.close(sessions)
        return {"closed": len(sessions)}

    return router


def _owner(request: Request) -> str:
    return str(request.scope["state"]["key_name"])


def _ids(calls: Calls, body: SessionsBody) -> list[str]:
    if len(body.sessions) > calls.config.max_batch:
        words = f"{len(body.sessions)} sessions; max_batch is {calls.config.max_batch}"
        raise Refused(Kind.INVALID, words, param="sessions")
    return body.sessions


def _task(body: TaskBody) -> Task:
    return Task(body.env, body.content, body.instruction, body.seed, tuple(body.tags))


def _action(action: list[Any]) -> Any:
    """Names as they are; numbers as a chunk [C, D]."""
    if not action or isinstance(action[0], str):
        return tuple(action)
    if len({len(row) for row in action}) != 1:
        raise Refused(Kind.INVALID, "the rows of a chunk must be equally long", param="actions")
    return np.array(action, dtype=np.float32)


def _shown(calls: Calls, turns: list[Turn], images: str) -> Response:
    body = json.dumps({"turns": [_turn(turn, images) for turn in turns]}, separators=(",", ":"))
    if len(body) > calls.config.max_reply_bytes:
        raise Refused(
            Kind.TOO_LARGE,
            f"the answer has {len(body)} bytes, more than max_reply_bytes ({calls.config.max_reply_bytes})",
        )
    return Response(body, media_type="application/json")


def _turn(turn: Turn, images: str) -> dict[str, Any]:
    if turn.error is not None:
        kind, words = pack_error(turn.error)
        return {"error": {"kind": kind, "message": words}}
    seen = turn.observation
    told: dict[str, Any] = {
        "reward": float(turn.reward),
        "terminated": bool(turn.terminated),
        "truncated": bool(turn.truncated),
        "info": turn.info,
    }
    if isinstance(seen, ArrayState):
        told["text"] = seen.instruction
        told["arrays"] = {name: _array(array) for name, array in seen.arrays.items()}
    else:
        told["text"] = seen.text
        told["images"] = [_picture(image, images) for image in seen.images]
        if seen.tools:
            told["tools"] = [[tool.name, tool.description, tool.parameters] for tool in seen.tools]
    return told | ({"state": turn.state} if turn.state else {})


def _picture(image: AnyArray, images: str) -> Any:
    return base64.b64encode(png_bytes(image)).decode() if images == "png" else _array(image)


def _array(array: AnyArray) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}
