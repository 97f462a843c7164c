"""The environment service as a web application: frames over HTTP and WebSocket, and a JSON API.

GET  /envs         the environments that are hosted
POST /call         one frame in, one frame out      (operations.py: the workers' protocol)
GET  /frames       an upgrade: frames and nothing else on the connection from now on (frame_connection.py)
WS   /ws           the same frames, one after another, on one connection
POST /sessions…    the same operations in JSON      (json_api.py)
GET  /, /docs      pages for people
GET  /health       is the process running
GET  /ready        can it open an environment

An error has a status and one sentence: as JSON over HTTP, as an `error` frame with the same status elsewhere.
The guard checks keys, limits and sizes of HTTP requests; for other frames they are checked here.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
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
from stepwell.services.envs.frame_connection import FrameConnections
from stepwell.services.envs.json_api import make_json_router
from stepwell.services.envs.operations import EnvOperations, read_frame
from stepwell.services.envs.sessions import EnvSessions
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.guard import App, Guard, Receive, Scope, Send
from stepwell.services.hosts import HostCheck
from stepwell.services.http_protocol import FRAMES, TAKE_OVER
from stepwell.services.keys import KeyRing, read_key
from stepwell.services.limits import ServiceLimits
from stepwell.services.pages import add_pages

_ABOUT = (
    "This service hosts Stepwell environments for training runs elsewhere. A run opens one as "
    "env.name = remote:URL#NAME; other programs use the JSON calls. docs/env_service.md describes it."
)
_FRAMES = (
    ("POST", "/call", "One frame in, one frame out; remote environments use it."),
    ("GET", "/frames", "The same frames on one connection, after an upgrade to stepwell-frames."),
    ("WS", "/ws", "The same frames on a WebSocket."),
)
_log = logging.getLogger(__name__)
_TOO_BIG, _NOT_ALLOWED = 1009, 1008  # WebSocket close codes


def create_env_app(config: EnvServiceConfig | None = None) -> FastAPI:
    """The application. Starting and stopping it opens and closes its environments."""
    config = config or EnvServiceConfig()
    sessions = EnvSessions(config)
    operations = EnvOperations(config, sessions)
    keys = KeyRing(config.keys, config.keys_file)
    limits = ServiceLimits(config.rate_per_s, config.burst, config.max_concurrent)
    log = AccessLog(config.access_log) if config.access_log is not None else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        sessions.start()
        yield
        await sessions.stop()
        if log is not None:
            log.close()

    app = FastAPI(
        title="Stepwell environments", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.sessions, app.state.header_timeout_s = sessions, config.header_timeout_s
    hosted = config.envs[0] if config.envs else "frozenlake"
    examples = (("/envs", ""), ("/sessions", json.dumps({"env": hosted, "count": 1})))
    add_pages(app, _ABOUT, examples, _FRAMES, needs_key=bool(config.keys or config.keys_file))
    _add_status_routes(app, operations, sessions)
    app.include_router(make_json_router(operations))
    answer = FrameAnswers(operations, limits, log)
    _add_websocket(app, answer, keys)
    for error in (ServiceError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, handle_error)
    frames = FrameConnections(config, answer.reply, lambda error: to_bytes(_make_error_frame(error)))
    app.add_middleware(CallRoute, operations=operations, frames=frames, keys=keys)
    app.add_middleware(
        Guard,
        keys=keys,
        limits=limits,
        max_body_bytes=config.max_body_bytes,
        body_timeout_s=config.body_timeout_s,
        hosts=HostCheck(is_loopback=config.is_loopback, host=config.host, allowed_hosts=config.allowed_hosts),
        write_error=write_error,
        log=log,
    )
    return app


def _add_status_routes(app: FastAPI, operations: EnvOperations, sessions: EnvSessions) -> None:
    @app.get("/health")
    async def check_health() -> dict[str, str]:
        """Whether the process is running."""
        return {"status": "ok"}

    @app.get("/ready")
    async def check_ready() -> Response:
        """Whether an environment could be opened now."""
        body = {"ready": sessions.is_ready, "num_sessions": len(sessions), "num_stuck": sessions.num_stuck}
        return make_json_response(body, 200 if sessions.is_ready else 503)

    @app.get("/envs")
    async def list_envs() -> dict[str, Any]:
        """The environments that are hosted, and how many sessions are open."""
        return {
            "envs": list(operations.names),
            "num_sessions": len(sessions),
            "max_sessions": operations.config.max_sessions,
            "num_expired": sessions.num_expired,
            "version": __version__,
        }


class CallRoute:
    """`POST /call` and `GET /frames` as plain ASGI in front of the router: turns are played here."""

    def __init__(self, app: App, operations: EnvOperations, frames: FrameConnections, keys: KeyRing) -> None:
        self._app, self._operations = app, operations
        self._frames, self._keys = frames, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = (scope["method"], scope["path"]) if scope["type"] == "http" else ()
        if asked == ("POST", "/call"):
            await self._call(scope, receive, send)
        elif asked == ("GET", "/frames"):
            self._upgrade(scope)
        else:
            await self._app(scope, receive, send)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()  # the guard has read the whole body
        if message["type"] != "http.request":
            return
        owner, frame = str(scope["state"]["key_name"]), read_frame(message.get("body", b""))
        answer = self._operations.handle_frame(owner, frame)
        reply = to_bytes(answer if isinstance(answer, Frame) else await answer)
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(reply))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})

    def _upgrade(self, scope: Scope) -> None:
        take_over = scope.get("extensions", {}).get(TAKE_OVER)
        if take_over is None:
            raise ServiceError(
                ErrorKind.INVALID, f"/frames needs 'connection: upgrade' and 'upgrade: {FRAMES}'"
            )
        owner = str(scope["state"]["key_name"])
        key = read_key({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]})
        is_known = (lambda: self._keys.find_name(key) == owner) if self._keys.is_needed else None
        take_over(self._frames.make_connection(owner, is_known))


class FrameAnswers:
    """Replies to frames outside of HTTP: counts them against their key, and writes them to the access log."""

    def __init__(self, operations: EnvOperations, limits: ServiceLimits, log: AccessLog | None) -> None:
        self._operations, self._limits, self._log = operations, limits, log
        self.max_body_bytes = operations.config.max_body_bytes

    def reply(self, owner: str, body: bytes | bytearray) -> bytes | Awaitable[bytes]:
        """The bytes of the reply, at once if nothing is to be waited for; errors are frames too."""
        start_s = time.perf_counter() if self._log is not None else 0.0
        reason = self._limits.start_call(owner)
        if reason is not None:
            error = ServiceError(ErrorKind.LIMITED, f"too many calls: {reason[0]}", retry_after_s=reason[1])
            return self._write_reply(owner, body, _make_error_frame(error), start_s)
        try:
            frame = self._operations.handle_frame(owner, read_frame(body))
            if not isinstance(frame, Frame):
                return self._await_reply(owner, body, frame, start_s)
        except Exception as error:
            frame = _explain_failure(error)
        self._limits.end_call(owner)
        return self._write_reply(owner, body, frame, start_s)

    async def _await_reply(
        self, owner: str, body: bytes | bytearray, answer: Awaitable[Frame], start_s: float
    ) -> bytes:
        try:
            frame = await answer
        except Exception as error:
            frame = _explain_failure(error)
        finally:
            self._limits.end_call(owner)
        return self._write_reply(owner, body, frame, start_s)

    def _write_reply(self, owner: str, body: bytes | bytearray, frame: Frame, start_s: float) -> bytes:
        reply = to_bytes(frame)
        if self._log is not None:
            self._log.write(
                method="FRAME",
                path="/frames",
                status=frame.header["status"] if frame.op == "error" else 200,
                ms=round(1000 * (time.perf_counter() - start_s), 2),
                read=len(body),
                written=len(reply),
                key=owner,
            )
        return reply


def _add_websocket(app: FastAPI, answer: FrameAnswers, keys: KeyRing) -> None:
    @app.websocket("/ws")
    async def serve_websocket(websocket: WebSocket) -> None:
        owner = _find_owner(read_key(websocket.headers), keys)
        if owner is None:
            await websocket.close(_NOT_ALLOWED)  # before accepting: the client sees HTTP 403
            return
        await websocket.accept()
        try:
            while True:
                message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                body = message.get("bytes")
                if body is None:
                    error = ServiceError(ErrorKind.INVALID, "send frames as binary messages, not text")
                    await websocket.send_bytes(to_bytes(_make_error_frame(error)))
                elif len(body) > answer.max_body_bytes:
                    await websocket.close(_TOO_BIG, f"a message has at most {answer.max_body_bytes} bytes")
                    return
                else:
                    reply = answer.reply(owner, body)
                    await websocket.send_bytes(reply if isinstance(reply, bytes) else await reply)
        except WebSocketDisconnect:
            return


def _find_owner(key: str, keys: KeyRing) -> str | None:
    """The name of the key; None if it must be refused."""
    return keys.find_name(key) if keys.is_needed else ""


def make_json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON in plain ASCII: whatever characters a caller sent, they can be sent back."""
    body = json.dumps(value, separators=(",", ":"))
    return Response(body, status, headers=dict(headers or {}), media_type="application/json")


def _make_error_frame(error: ServiceError) -> Frame:
    return Frame("error", {"status": error.kind.value, "detail": error.message, "kind": _name_cause(error)})


def _explain_failure(error: Exception) -> Frame:
    if isinstance(error, ServiceError):
        return _make_error_frame(error)
    _log.error("a frame failed", exc_info=error)
    return _make_error_frame(ServiceError(ErrorKind.INTERNAL, "the service failed; see its log"))


def _name_cause(error: ServiceError) -> str:
    """The name of the error behind a `ServiceError`, so that a caller can raise it again."""
    return type(error.__cause__).__name__ if error.__cause__ is not None else ""


def _make_error_response(error: ServiceError) -> Response:
    body: dict[str, Any] = {"detail": error.message, "kind": _name_cause(error), "param": error.param}
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if error.kind is ErrorKind.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return make_json_response({name: v for name, v in body.items() if v}, error.kind.value, headers)


def write_error(path: str, error: ServiceError, headers: Mapping[str, str]) -> App:
    reply: App = _make_error_response(error)  # type: ignore[assignment]  # a response is an ASGI app
    return reply


async def handle_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return make_json_response(
            {"detail": f"{request.method} {request.url.path}: {error.detail}"}, error.status_code
        )
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        error = ServiceError(ErrorKind.INVALID, f"{where or 'body'}: {first['msg']}", param=where or None)
    assert isinstance(error, ServiceError)
    return _make_error_response(error)
