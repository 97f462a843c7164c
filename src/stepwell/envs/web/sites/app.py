"""The ASGI application: five hosts, one table of routes each, one database per request.

    request ─► find_snapshot (episode header, or a visitor's cookie) ─► Visit ─► page ─► write_document

Pages are plain functions and never wait, so a request in process costs no thread and no socket.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Host, Route, Router

from stepwell.envs.web.sites.layout import COMMON_ROUTES, write_document
from stepwell.envs.web.sites.pages import SITES
from stepwell.envs.web.sites.visit import (
    EPISODE_HEADER,
    PageError,
    PageRoute,
    Redirect,
    Site,
    Visit,
    page,
    set_state,
)

VISIT_COOKIE = "visit"
MAX_BODY, MAX_FIELDS = 65_536, 100
_SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class SnapshotStore(Protocol):
    """Who keeps the databases: by episode, and by visitor."""

    rows_per_page: int
    today: str

    def find_episode(self, name: str) -> sqlite3.Connection | None:
        """The snapshot of an open episode."""

    def find_visitor(self, name: str) -> sqlite3.Connection:
        """The snapshot of a visitor, made at the first visit."""


def build_app(store: SnapshotStore) -> Starlette:
    """One application for all hosts."""
    hosts = [Host(f"{site.name}.localhost", Router(_build_routes(site, store))) for site in SITES]
    return Starlette(routes=[*hosts, Route("/{path:path}", _show_hosts)])


async def _show_hosts(request: Request) -> Response:
    names = ", ".join(f"{site.name}.localhost" for site in SITES)
    return PlainTextResponse(f"The sites are {names}, on this port.\n", 404)


def _build_routes(site: Site, store: SnapshotStore) -> list[Route]:
    routes = [*COMMON_ROUTES, *site.routes]
    made = [Route(r.path, _build_endpoint(site, r, store), methods=[r.method]) for r in routes]
    missing = PageRoute("GET", "/{rest:path}", _show_missing)
    return [*made, Route(missing.path, _build_endpoint(site, missing, store), methods=["GET", "POST"])]


def _show_missing(visit: Visit, rest: str) -> Redirect:
    raise PageError(404, "There is nothing here.")


def _build_endpoint(
    site: Site, route: PageRoute, store: SnapshotStore
) -> Callable[[Request], Awaitable[Response]]:
    async def answer_request(request: Request) -> Response:
        body = await _read_body(request) if request.method == "POST" else b""
        name, visitor = request.headers.get(EPISODE_HEADER), ""
        if name is None:
            visitor = _find_visitor(request)
            db = store.find_visitor(visitor)
        elif (found := store.find_episode(name)) is not None:
            db = found
        else:
            return PlainTextResponse("This episode is closed.\n", 410)
        if body is None:
            return PlainTextResponse(f"A form may hold {MAX_BODY} bytes.\n", 413)
        response = _answer(site, route, _build_visit(site, request, db, body, store, visitor), request)
        if visitor and request.cookies.get(VISIT_COOKIE) != visitor:
            response.set_cookie(VISIT_COOKIE, visitor, httponly=True, samesite="lax")
        response.headers.update(_SAFE_HEADERS)
        return response

    return answer_request


async def _read_body(request: Request) -> bytes | None:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            return None
    return body


def _find_visitor(request: Request) -> str:
    for name in (request.query_params.get("visit"), request.cookies.get(VISIT_COOKIE)):
        if name and re.fullmatch(r"[0-9a-f]{16}", name):
            return name
    return secrets.token_hex(8)


def _build_visit(
    site: Site, request: Request, db: sqlite3.Connection, body: bytes, store: SnapshotStore, visitor: str
) -> Visit:
    port = f":{request.url.port}" if request.url.port else ""
    query = {key: value for key, value in request.query_params.items() if key != "visit"}
    pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    return Visit(
        db, site.name, request.url.path, store.rows_per_page, store.today, query, dict(pairs), port, visitor
    )


def _answer(site: Site, route: PageRoute, visit: Visit, request: Request) -> Response:
    try:
        if route.private and not visit.user:
            raise PageError(403, "Please log in first.")
        answer = route.answer(visit, **request.path_params)
    except PageError as error:
        return HTMLResponse(write_document(site, visit, page(str(error))), error.status)
    if isinstance(answer, Redirect):
        set_state(visit.db, "notice", answer.notice)
        return RedirectResponse(answer.to, 303)
    return HTMLResponse(write_document(site, visit, answer))
