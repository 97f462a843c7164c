"""The control endpoints: create, inspect, reward and complete sessions; health, readiness, metrics.

Every change is committed before the reply. A reward may name a step, or the call whose reply it is about.
Without either it is for the whole session and counts for its last step. A later reward for the same step and
part is a correction, which is possible after the session is over, too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from stepwell.core import JSON, Status, Task, make_id
from stepwell.core.errors import InputError
from stepwell.pool import StoredTrajectory
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.base import BaseGateway
from stepwell.services.gateway.registry import SessionOptions, SessionRegistry
from stepwell.services.gateway.sessions import GatewaySession

Name = Annotated[str, Field(min_length=1, max_length=128)]


class ControlBody(BaseModel):
    """A body of a control endpoint. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SessionTaskBody(ControlBody):
    """The task that a session's agent works on."""

    env: Name = "gateway"
    content: dict[str, Any] = Field(default_factory=dict)
    instruction: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    tags: list[Name] = Field(default_factory=list)


class SessionBody(ControlBody):
    """A session to create."""

    id: Name | None = None
    task: SessionTaskBody | None = None
    group: Annotated[str, Field(max_length=128)] = ""
    group_size: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    channel: Literal["train", "eval", "user"] | None = None
    tags: list[Name] = Field(default_factory=list)


class RewardBody(ControlBody):
    """A reward, or the correction of one."""

    value: Annotated[float, Field(strict=True)]
    step: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    call: Name | None = None
    choice: Annotated[int, Field(ge=0, lt=2**31)] = 0
    part: Name = "task"


class CompleteBody(ControlBody):
    """How a session ended. Without a status, a reward above zero is a success."""

    status: Status | None = None
    reward: Annotated[float, Field(strict=True)] | None = None
    error: Annotated[str, Field(max_length=10_000)] = ""


def make_control_router(gateway: BaseGateway) -> APIRouter:
    """The endpoints that belong to no chat API."""
    router = APIRouter(tags=["control"])
    _add_status_routes(router, gateway)
    _add_session_routes(router, gateway.registry)
    return router


def _add_status_routes(router: APIRouter, gateway: BaseGateway) -> None:
    @router.get("/health")
    async def check_health() -> dict[str, str]:
        """Whether the process is running."""
        return {"status": "ok"}

    @router.get("/ready")
    async def check_ready() -> JSONResponse:
        """Whether calls can be served: the pool and the engine respond."""
        try:
            is_ready, why = await gateway.is_ready(), "the engine does not respond"
        except Exception as error:  # any error is the reason
            is_ready, why = False, f"{type(error).__name__}: {error}"
        return JSONResponse(
            {"ready": True} if is_ready else {"ready": False, "why": why}, 200 if is_ready else 503
        )

    @router.get("/metrics")
    async def get_metrics() -> dict[str, Any]:
        """Counts since the start, as JSON."""
        return gateway.collect_metrics()


def _add_session_routes(router: APIRouter, registry: SessionRegistry) -> None:
    @router.post("/sessions", status_code=201)
    async def create_session(body: SessionBody, request: Request) -> dict[str, Any]:
        """Create a session with a task, a group and tags. The same call again returns the same session."""
        session = await registry.open_session(
            body.id or make_id("session"), _get_key_name(request), _read_options(body)
        )
        return {"id": session.id, "base_path": f"/s/{session.id}"}

    @router.get("/sessions")
    async def list_sessions(request: Request) -> dict[str, Any]:
        """The caller's open sessions in this process."""
        own = [s for s in registry.sessions.values() if s.owner in ("", _get_key_name(request))]
        return {"sessions": [session.describe() for session in own]}

    @router.get("/sessions/{session}")
    async def get_session(session: str, request: Request) -> dict[str, Any]:
        """One session: its steps, its branches with their reasons, and how it ended."""
        found = await registry.find_session(session, _get_key_name(request))
        return found.describe() if isinstance(found, GatewaySession) else _describe_stored(found)

    @router.post("/sessions/{session}/reward")
    async def reward_session(session: str, body: RewardBody, request: Request) -> dict[str, Any]:
        """Reward a step, a call or the whole session, or correct such a reward."""
        found = await registry.find_session(session, _get_key_name(request))
        step = _find_step(found, body)
        await registry.reward_session(found, body.value, step, body.part, _get_key_name(request))
        return {"id": session, "step": step, "part": body.part, "value": body.value}

    @router.post("/sessions/{session}/complete")
    async def complete_session(
        session: str, request: Request, body: CompleteBody | None = None
    ) -> dict[str, Any]:
        """End a session. A reward given here is for the whole session."""
        body = body or CompleteBody()
        found = await registry.find_session(session, _get_key_name(request))
        if isinstance(found, StoredTrajectory):
            return _complete_again(found, body)
        if body.reward is not None:
            await registry.reward_session(found, body.reward, None, "task", _get_key_name(request))
        error = body.error.replace("\0", "\ufffd")  # not every database stores NUL
        status = await registry.finish_session(found, body.status, error)
        return {"id": session, "status": status.value}


def _get_key_name(request: Request) -> str:
    return str(request.scope["state"]["key_name"])


def _read_options(body: SessionBody) -> SessionOptions:
    task = None
    if body.task is not None:
        if not body.task.env.isprintable():
            raise ServiceError(
                ErrorKind.INVALID, "task.env must hold printable characters only", param="task.env"
            )
        try:
            task = Task(
                body.task.env, body.task.content, body.task.instruction, body.task.seed, tuple(body.task.tags)
            )
        except InputError as error:
            raise ServiceError(ErrorKind.INVALID, str(error), param="task") from error
    return SessionOptions(task, body.group, body.group_size, body.channel, tuple(body.tags))


def _find_step(found: GatewaySession | StoredTrajectory, body: RewardBody) -> int | None:
    if body.call is None:
        return body.step
    if isinstance(found, GatewaySession):
        step = found.find_step(body.call, body.choice)
    else:
        infos = zip(found.numbers, (step.info for step in found.trajectory.steps), strict=True)
        wanted = (body.call, body.choice)
        step = next(
            (number for number, info in infos if (info.get("call"), info.get("choice")) == wanted), None
        )
    if step is None:
        raise ServiceError(
            ErrorKind.NOT_FOUND, f"session {found.id!r} has no call {body.call!r}", param="call"
        )
    return step


def _complete_again(found: StoredTrajectory, body: CompleteBody) -> dict[str, Any]:
    """Completing twice is fine if both say the same."""
    status = found.entry.status
    assert status is not None
    if (body.status is not None and body.status is not status) or body.reward is not None:
        raise ServiceError(
            ErrorKind.CONFLICT,
            f"session {found.id!r} is already over ({status.value}); correct its rewards at /reward",
        )
    return {"id": found.id, "status": status.value}


def _describe_stored(stored: StoredTrajectory) -> dict[str, JSON]:
    info = stored.trajectory.info
    return {
        "id": stored.id,
        "status": stored.entry.status.value if stored.entry.status else "open",
        "error": stored.trajectory.error,
        "num_steps": stored.entry.num_steps,
        "path": list(stored.path) if stored.path is not None else list(stored.numbers),
        "reward": stored.entry.reward,
        "branches": info.get("branches", {}),
        "infra_errors": info.get("infra_errors", {}),
        "created_s": stored.created_s,
        "finished_s": stored.finished_s,
    }
