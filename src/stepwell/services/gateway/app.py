"""The gateway as a web application: dialects at two places, control endpoints, and the guard around it.

/v1/…               session by header `X-Stepwell-Session`, or that of the key
/s/{session}/v1/…   session by path: what an agent gets as its base URL
/sessions…          begin, look at, reward and complete sessions      (control.py)
/, /docs            what this is, for people                          (pages.py)
/health, /ready     is the process there; can it serve
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
from stepwell.services.gateway.control import control_router
from stepwell.services.gateway.dialects import refusal_response, routers
from stepwell.services.gateway.dialects.refusals import refused_body
from stepwell.services.gateway.exchange import STATUS, Caller, Kind, Refused
from stepwell.services.guard import App, Guard
from stepwell.services.hosts import HostCheck
from stepwell.services.keys import KeyRing
from stepwell.services.limits import Limits
from stepwell.services.pages import add_pages

if TYPE_CHECKING:
    from stepwell.services.gateway.gateway import Gateway
    from stepwell.services.gateway.upstream import UpstreamGateway

_ABOUT = (
    "This is a Stepwell gateway. It serves a policy to agents as a chat API and records every call. "
    "Point an agent's base URL at /s/SESSION/v1 (OpenAI) or /s/SESSION (Anthropic). "
    "docs/gateway.md describes it."
)
SESSION_HEADER = "x-stepwell-session"
_RETRY_HEADER = "x-stainless-retry-count"  # what the openai and anthropic clients say about themselves
_KINDS = {status: kind for kind, status in STATUS.items()} | {405: Kind.INVALID}


def create_app(gateway: Gateway | UpstreamGateway, config: GatewayConfig | None = None) -> FastAPI:
    """The application of a gateway; starting and stopping it starts and stops the gateway."""
    config = config or gateway.config
    log = AccessLog(config.access_log) if config.access_log is not None else None

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        yield
        await gateway.stop()
        if log is not None:
            log.close()

    app = FastAPI(title="Stepwell gateway", version=__version__, lifespan=life, docs_url=None, redoc_url=None)
    app.state.header_timeout_s = config.header_timeout_s
    add_pages(app, _ABOUT)
    for router in routers(gateway, caller_of):
        app.include_router(router)
        app.include_router(router, prefix="/s/{session}")
    app.include_router(control_router(gateway))
    for error in (Refused, RequestValidationError, HTTPException):
        app.add_exception_handler(error, _refuse)
    app.add_middleware(
        Guard,
        keys=KeyRing(config.keys, config.keys_file),
        limits=Limits(config.rate_per_s, config.burst, config.max_concurrent),
        max_body_bytes=config.max_body_bytes,
        body_timeout_s=config.body_timeout_s,
        hosts=HostCheck(is_loopback=config.is_loopback, host=config.host, allowed_hosts=config.allowed_hosts),
        refuse=_refusal,
        log=log,
    )
    return app


def caller_of(request: Request) -> Caller:
    """Who calls, in which session."""
    scope = request.scope
    session = scope["path_params"].get("session") or request.headers.get(SESSION_HEADER, "")
    retries = request.headers.get(_RETRY_HEADER, "0")
    state = scope["state"]
    state["session"] = session
    return Caller(session, state["key_name"], int(retries) if retries.isdigit() else 0)


def _refusal(path: str, refused: Refused, headers: Mapping[str, str]) -> App:
    reply: App = refusal_response(path, refused, headers)  # type: ignore[assignment]  # a response is one
    return reply


async def _refuse(request: Request, error: Exception) -> Any:
    if isinstance(error, RequestValidationError):
        error = refused_body(error)
    elif isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path}: {error.detail}"
        reply = refusal_response(
            request.url.path, Refused(_KINDS.get(error.status_code, Kind.INVALID), message), request.headers
        )
        reply.status_code = error.status_code
        return reply
    assert isinstance(error, Refused)
    return refusal_response(request.url.path, error, request.headers)
