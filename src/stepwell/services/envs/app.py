"""The environment service as a web application: frames over HTTP and WebSocket, JSON for everyone else.

GET  /envs         what is hosted
POST /call         a frame in, a frame out          (calls.py: the workers' protocol)
WS   /ws           the same frames, one after the other, on one connection
POST /sessions…    the same in JSON                 (json_api.py)
GET  /, /docs      what this is, for people
GET  /health       is the process there
GET  /ready        can it open a world

What is refused has a status and one sentence: as JSON over HTTP, as an `error` frame with the same status
over a WebSocket. Keys, limits and sizes are the guard's, for a WebSocket they are looked at here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from stepwell import __version__
from stepwell.config.env_service import EnvServiceConfig
from stepwell.envs.remote.wire import CONTENT_TYPE, Frame, to_bytes
from stepwell.services.access_log import AccessLog
from stepwell.services.envs.calls import Calls, read_frame
from stepwell.services.envs.json_api import json_router
from stepwell.services.envs.sessions import Sessions
from stepwell.services.gateway.exchange import STATUS, Kind, Refused
from stepwell.services.guard import App, Guard
from stepwell.services.hosts import HostCheck
from stepwell.services.keys import KeyRing
from stepwell.services.limits import Limits
from stepwell.services.pages import add_pages

_ABOUT = (
    "This service hosts Stepwell environments for training runs elsewhere. A run opens one as "
    "env.name = remote:URL#NAME; other programs use the JSON calls. docs/env_service.md describes it."
)
_FRAMES = (
    ("POST", "/call", "A frame in, a frame out: what remote environments use."),
    ("WS", "/ws", "The same frames on one connection."),
)
_TOO_BIG, _NOT_ALLOWED = 1009, 1008  # WebSocket's own codes


def create_env_app(config: EnvServiceConfig | None = None) -> FastAPI:
    """The application; starting and stopping it opens and closes its worlds."""
    config = config or EnvServiceConfig()
    sessions = Sessions(config)
    calls = Calls(config, sessions)
    keys = KeyRing(config.keys, config.keys_file)
    limits = Limits(config.rate_per_s, config.burst, config.max_concurrent)
    log = AccessLog(config.access_log) if config.access_log is not None else None

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        sessions.start()
        yield
        await sessions.stop()
        if log is not None:
            log.close()

    app = FastAPI(
        title="Stepwell environments", version=__version__, lifespan=life, docs_url=None, redoc_url=None
    )
    app.state.sessions, app.state.header_timeout_s = sessions, config.header_timeout_s
    add_pages(app, _ABOUT, _FRAMES)
    _add_state(app, calls, sessions)
    _add_calls(app, calls)
    app.include_router(json_router(calls))
    _add_socket(app, calls, keys, limits)
    for error in (Refused, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _refuse)
    app.add_middleware(
        Guard,
        keys=keys,
        limits=limits,
        max_body_bytes=config.max_body_bytes,
        body_timeout_s=config.body_timeout_s,
        hosts=HostCheck(is_loopback=config.is_loopback, host=config.host, allowed_hosts=config.allowed_hosts),
        refuse=_refusal,
        log=log,
    )
    return app


def _add_state(app: FastAPI, calls: Calls, sessions: Sessions) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the process is there."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> Response:
        """Whether a world could be opened now."""
        told = {"ready": sessions.is_ready, "num_sessions": len(sessions), "num_stuck": sessions.num_stuck}
        return said(told, 200 if sessions.is_ready else 503)

    @app.get("/envs")
    async def envs() -> dict[str, Any]:
        """What is hosted, and how much of it is in use."""
        return {
            "envs": list(calls.names),
            "num_sessions": len(sessions),
            "max_sessions": calls.config.max_sessions,
            "num_expired": sessions.num_expired,
            "version": __version__,
        }


def _add_calls(app: FastAPI, calls: Calls) -> None:
    async def call(request: Request) -> Response:
        answer = await calls.answer(str(request.scope["state"]["key_name"]), read_frame(await request.body()))
        return Response(to_bytes(answer), media_type=CONTENT_TYPE)

    app.router.add_route("/call", call, methods=["POST"])


def _add_socket(app: FastAPI, calls: Calls, keys: KeyRing, limits: Limits) -> None:
    async def answer(owner: str, body: bytes) -> Frame:
        refusal = limits.enter(owner)
        if refusal is not None:
            return _error(Refused(Kind.LIMITED, f"too many calls: {refusal[0]}", retry_after_s=refusal[1]))
        try:
            return await calls.answer(owner, read_frame(body))
        except Refused as refused:
            return _error(refused)
        finally:
            limits.leave(owner)

    @app.websocket("/ws")
    async def socket(websocket: WebSocket) -> None:
        owner = _owner(websocket, keys)
        if owner is None:
            await websocket.close(_NOT_ALLOWED)  # before it is accepted: HTTP 403
            return
        await websocket.accept()
        try:
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                body = message.get("bytes")
                if body is None:
                    refused = Refused(Kind.INVALID, "send frames as binary messages, not text")
                    await websocket.send_bytes(to_bytes(_error(refused)))
                elif len(body) > calls.config.max_body_bytes:
                    await websocket.close(
                        _TOO_BIG, f"a message has at most {calls.config.max_body_bytes} bytes"
                    )
                    return
                else:
                    await websocket.send_bytes(to_bytes(await answer(owner, body)))
        except WebSocketDisconnect:
            return


def _owner(websocket: WebSocket, keys: KeyRing) -> str | None:
    """The name of the key it was opened with; None if it must stay shut."""
    if not keys.is_needed:
        return ""
    given = websocket.headers.get("authorization", "")
    key = given[7:].strip() if given[:7].lower() == "bearer " else websocket.headers.get("x-api-key", "")
    return keys.name_of(key)


def said(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in plain ASCII: whatever characters a caller sent, they can be sent back."""
    body = json.dumps(value, separators=(",", ":"))
    return Response(body, status, headers=dict(headers or {}), media_type="application/json")


def _error(refused: Refused) -> Frame:
    return Frame("error", {"status": STATUS[refused.kind], "detail": refused.message, "kind": _kind(refused)})


def _kind(refused: Refused) -> str:
    """The kind of the error that led to a refusal, where it has one that a caller can raise again."""
    return type(refused.__cause__).__name__ if refused.__cause__ is not None else ""


def _response(refused: Refused) -> Response:
    told: dict[str, Any] = {"detail": refused.message, "kind": _kind(refused), "param": refused.param}
    headers = {}
    if refused.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(refused.retry_after_s)))
    if refused.kind is Kind.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return said({name: v for name, v in told.items() if v}, STATUS[refused.kind], headers)


def _refusal(path: str, refused: Refused, headers: Mapping[str, str]) -> App:
    reply: App = _response(refused)  # type: ignore[assignment]  # a response is one
    return reply


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return said({"detail": f"{request.method} {request.url.path}: {error.detail}"}, error.status_code)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        error = Refused(Kind.INVALID, f"{where or 'body'}: {first['msg']}", param=where or None)
    assert isinstance(error, Refused)
    return _response(error)
