"""The same operations in JSON, for callers that do not use frames. Sessions and rules are the same.

    POST /sessions            {env, options, count}              ─► {sessions, session_timeout_s}
    POST /sessions/reset      {sessions, seeds and/or tasks}     ─► {turns}
    POST /sessions/step       {sessions, actions}                ─► {turns}
    POST /sessions/heartbeat  {sessions}                         ─► {alive}
    POST /sessions/close      {sessions}                         ─► {closed}

An action is a list of names, or a robot's chunk as a list of lists of numbers. Images and arrays are sent as
base64: images as PNG files (`images: "png"`, the default) or as raw bytes with shape and dtype.
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
from stepwell.envs.remote.wire import encode_png, pack_error
from stepwell.envs.turns import Turn
from stepwell.services.envs.operations import EnvOperations, convert_errors
from stepwell.services.errors import ErrorKind, ServiceError

Name = Annotated[str, Field(min_length=1, max_length=256)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Number = Annotated[float, Field(ge=-1e30, le=1e30)]


class JsonBody(BaseModel):
    """A request body. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class CreateSessionsBody(JsonBody):
    """Environments to open."""

    env: Name
    options: dict[str, Any] = Field(default_factory=dict)
    count: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 1


class EnvTaskBody(JsonBody):
    """A task of an environment."""

    env: Name
    content: dict[str, Any]
    instruction: str = ""
    seed: Seed = 0
    tags: list[Name] = Field(default_factory=list)


class SessionsBody(JsonBody):
    """The sessions that a call is about."""

    sessions: Annotated[list[Name], Field(min_length=1)]


class TurnOptionsBody(SessionsBody):
    """The sessions, and how their turns are written."""

    with_state: bool = False
    images: Literal["png", "raw"] = "png"


class ResetBody(TurnOptionsBody):
    """Episodes to start: from tasks, from seeds, or from tasks with seeds for their randomness."""

    tasks: list[EnvTaskBody] | None = None
    seeds: list[Seed] | None = None


class StepBody(TurnOptionsBody):
    """One turn in each session."""

    actions: list[list[str] | list[list[Number]]]
    turns: list[Seed] | None = None


def make_json_router(operations: EnvOperations) -> APIRouter:
    """The routes of the JSON API."""
    router = APIRouter(prefix="/sessions", tags=["sessions"])

    @router.post("", status_code=201)
    async def create_sessions(body: CreateSessionsBody, request: Request) -> dict[str, Any]:
        """Open environments: all of them, or none."""
        with convert_errors():
            opened = await operations.create(_get_owner(request), body.env, body.options, body.count)
        value = {"sessions": [session.id for session in opened]}
        return value | {"session_timeout_s": operations.config.session_timeout_s}

    @router.post("/reset")
    async def reset_sessions(body: ResetBody, request: Request) -> Response:
        """Start an episode in each session."""
        with convert_errors():
            tasks = None if body.tasks is None else [_read_task(task) for task in body.tasks]
            ids = _check_ids(operations, body)
            turns = await operations.reset(_get_owner(request), ids, tasks, body.seeds, body.with_state)
        return _write_turns(operations, turns, body.images)

    @router.post("/step")
    async def step_sessions(body: StepBody, request: Request) -> Response:
        """Play one turn in each session."""
        with convert_errors():
            actions = [_read_action(action) for action in body.actions]
            ids = _check_ids(operations, body)
            turns = await operations.step(_get_owner(request), ids, actions, body.turns, body.with_state)
        return _write_turns(operations, turns, body.images)

    @router.post("/heartbeat")
    async def keep_alive(body: SessionsBody, request: Request) -> dict[str, Any]:
        """Keep sessions open."""
        return {"alive": len(operations.sessions.find(_get_owner(request), _check_ids(operations, body)))}

    @router.post("/close")
    async def close_sessions(body: SessionsBody, request: Request) -> dict[str, Any]:
        """Close sessions."""
        sessions = operations.sessions.find(_get_owner(request), _check_ids(operations, body))
        await operations.sessions.close(sessions)
        return {"closed": len(sessions)}

    return router


def _get_owner(request: Request) -> str:
    return str(request.scope["state"]["key_name"])


def _check_ids(operations: EnvOperations, body: SessionsBody) -> list[str]:
    if len(body.sessions) > operations.config.max_batch:
        message = f"{len(body.sessions)} sessions; max_batch is {operations.config.max_batch}"
        raise ServiceError(ErrorKind.INVALID, message, param="sessions")
    return body.sessions


def _read_task(body: EnvTaskBody) -> Task:
    return Task(body.env, body.content, body.instruction, body.seed, tuple(body.tags))


def _read_action(action: list[Any]) -> Any:
    """Names stay names; numbers become a chunk [C, D]."""
    if not action or isinstance(action[0], str):
        return tuple(action)
    if len({len(row) for row in action}) != 1:
        raise ServiceError(
            ErrorKind.INVALID, "all rows of a chunk must have the same length", param="actions"
        )
    return np.array(action, dtype=np.float32)


def _write_turns(operations: EnvOperations, turns: list[Turn], images: str) -> Response:
    body = json.dumps({"turns": [_write_turn(turn, images) for turn in turns]}, separators=(",", ":"))
    if len(body) > operations.config.max_reply_bytes:
        raise ServiceError(
            ErrorKind.TOO_LARGE,
            f"the reply has {len(body)} bytes; max_reply_bytes is {operations.config.max_reply_bytes}",
        )
    return Response(body, media_type="application/json")


def _write_turn(turn: Turn, images: str) -> dict[str, Any]:
    if turn.error is not None:
        kind, message = pack_error(turn.error)
        return {"error": {"kind": kind, "message": message}}
    observation = turn.observation
    value: dict[str, Any] = {
        "reward": float(turn.reward),
        "terminated": bool(turn.terminated),
        "truncated": bool(turn.truncated),
        "info": turn.info,
    }
    if isinstance(observation, ArrayState):
        value["text"] = observation.instruction
        value["arrays"] = {name: _write_array(array) for name, array in observation.arrays.items()}
    else:
        value["text"] = observation.text
        value["images"] = [_write_image(image, images) for image in observation.images]
        if observation.tools:
            value["tools"] = [[tool.name, tool.description, tool.parameters] for tool in observation.tools]
    return value | ({"state": turn.state} if turn.state else {})


def _write_image(image: AnyArray, images: str) -> Any:
    return base64.b64encode(encode_png(image)).decode() if images == "png" else _write_array(image)


def _write_array(array: AnyArray) -> dict[str, Any]:
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}
