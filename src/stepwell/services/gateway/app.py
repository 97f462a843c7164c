"""The gateway as a web application: chat APIs, control endpoints, and the guard in front.

/v1/…               session by header `X-Stepwell-Session`, or the session of the key
/s/{session}/v1/…   session by path: the base URL that an agent gets
/sessions…          create, inspect, reward and complete sessions     (control.py)
/, /docs            pages for people                                  (pages.py)
/health, /ready     is the process running; can it serve calls
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from stepwell import __version__
from stepwell.config.gateway import GatewayConfig
from stepwell.services.access_log import AccessLog
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.chat import GatewayCaller
from stepwell.services.gateway.control import make_control_router
from stepwell.services.gateway.dialects import make_error_response, make_routers
from stepwell.services.gateway.dialects.errors import explain_invalid_body
from stepwell.services.guard import App, Guard
from stepwell.services.hosts import HostCheck
from stepwell.services.keys import KeyRing
from stepwell.services.limits import ServiceLimits
from stepwell.services.pages import add_pages

if TYPE_CHECKING:
    from stepwell.services.gateway.gateway import Gateway
    from stepwell.services.gateway.upstream import UpstreamGateway

_ABOUT = (
    "This is a Stepwell gateway. It serves a policy to agents as a chat API and records every call. "
    "Point an agent's base URL at /s/SESSION/v1 (OpenAI) or /s/SESSION (Anthropic). "
    "docs/gateway.md describes it."
)
_EXAMPLES = (
    (
        "/s/mine/v1/chat/completions",
        '{"model": "policy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}',
    ),
    ("/sessions/mine", ""),
)
SESSION_HEADER = "x-stepwell-session"
_RETRY_HEADER = "x-stainless-retry-count"  # sent by the openai and anthropic clients
_ERROR_KINDS = {kind.value: kind for kind in ErrorKind}


def create_app(gateway: Gateway | UpstreamGateway, config: GatewayConfig | None = None) -> FastAPI:
    """The application of a gateway. Starting and stopping it starts and stops the gateway."""
    config = config or gateway.config
    log = AccessLog(config.access_log) if config.access_log is not None else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        yield
        await gateway.stop()
        if log is not None:
            log.close()

    app = FastAPI(
        title="Stepwell gateway", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.header_timeout_s = config.header_timeout_s
    add_pages(app, _ABOUT, _EXAMPLES, needs_key=bool(config.keys or config.keys_file))
    for router in make_routers(gateway, identify_caller):
        app.include_router(router)
        app.include_router(router, prefix="/s/{session}")
    app.include_router(make_control_router(gateway))
    for error in (ServiceError, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _handle_error)
    app.add_middleware(
        Guard,
        keys=KeyRing(config.keys, config.keys_file),
        limits=ServiceLimits(config.rate_per_s, config.burst, config.max_concurrent),
        max_body_bytes=config.max_body_bytes,
        body_timeout_s=config.body_timeout_s,
        hosts=HostCheck(is_loopback=config.is_loopback, host=config.host, allowed_hosts=config.allowed_hosts),
        write_error=_write_error,
        log=log,
    )
    return app


def identify_caller(request: Request) -> GatewayCaller:
    """Who calls, and in which session."""
    scope = request.scope
    session = scope["path_params"].get("session") or request.headers.get(SESSION_HEADER, "")
    retries = request.headers.get(_RETRY_HEADER, "0")
    state = scope["state"]
    state["session"] = session
    return GatewayCaller(session, state["key_name"], int(retries) if retries.isdigit() else 0)


def _write_error(path: str, error: ServiceError, headers: Mapping[str, str]) -> App:
    reply: App = make_error_response(path, error, headers)  # type: ignore[assignment]  # a response is an ASGI app
    return reply


async def _handle_error(request: Request, error: Exception) -> Any:
    if isinstance(error, RequestValidationError):
        error = explain_invalid_body(error)
    elif isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        reply = make_error_response(
            request.url.path,
            ServiceError(_ERROR_KINDS.get(error.status_code, ErrorKind.INVALID), message),
            request.headers,
        )
        reply.status_code = error.status_code
        return reply
    assert isinstance(error, ServiceError)
    return make_error_response(request.url.path, error, request.headers)
