"""The application of the five hosts: one table of routes each, one database per request.

    HTTP ─► __call__ ─┐                         ┌─► SiteEpisode.answer_request ─┐
    light driver ─────┴─► answer_request ───────┴─► a visitor's snapshot ───────┴─► answer_visit ─► page

It is an ASGI application for servers. Pages are plain functions and never wait: the light driver calls
`answer_request` itself, without a thread, a loop or a socket.
"""

from __future__ import annotations

import logging
import re
import secrets
import sqlite3
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl

from stepwell.core.cookies import read_cookie
from stepwell.envs.web.exchange import DirectSite, SiteAnswer, SiteRequest
from stepwell.envs.web.sites.layout import COMMON_ROUTES, write_document
from stepwell.envs.web.sites.pages import SITES
from stepwell.envs.web.sites.replies import make_note, make_page, make_redirect
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
METHODS = ("GET", "HEAD", "POST")
_PARTS = re.compile(r"{(\w+)(?::(int))?}")
_KINDS = {"int": "[0-9]+", None: "[^/]+"}
CompiledRoute = tuple[str, re.Pattern[str], PageRoute, Mapping[str, Callable[[str], Any]]]
_log = logging.getLogger(__name__)


class EpisodeSnapshot(Protocol):
    """An open episode: answers from its own snapshot."""

    def answer_request(self, request: SiteRequest) -> SiteAnswer:
        """The answer; the snapshot is as the request left it."""


class SnapshotStore(Protocol):
    """Who keeps the databases: by episode, and by visitor."""

    rows_per_page: int
    today: str

    def find_episode(self, name: str) -> EpisodeSnapshot | None:
        """An open episode."""

    def find_visitor(self, name: str) -> sqlite3.Connection:
        """The snapshot of a visitor, made at the first visit."""


class SitesApp(DirectSite):
    """The five hosts over a store of snapshots."""

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store

    def answer_request(self, request: SiteRequest, headers: Mapping[str, str]) -> SiteAnswer:
        """Answer at once; names of headers are in small letters."""
        if request.method not in METHODS:
            return make_note("Method Not Allowed", 405)
        if _find_site(request.host) is None:
            names = ", ".join(f"{site.name}.localhost" for site in SITES)
            return make_note(f"The sites are {names}, on this port.\n", 404)
        name = headers.get(EPISODE_HEADER)
        episode = None if name is None else self._store.find_episode(name)
        if name is not None and episode is None:
            return make_note("This episode is closed.\n", 410)
        if len(request.body) > MAX_BODY:
            return make_note(f"A form may hold {MAX_BODY} bytes.\n", 413)
        if episode is not None:
            return episode.answer_request(request)
        return self._answer_visitor(request, headers.get("cookie", ""))

    def _answer_visitor(self, request: SiteRequest, cookie: str) -> SiteAnswer:
        known = read_cookie(cookie, VISIT_COOKIE)
        visitor = _choose_visitor(_read_query(request.query).get("visit", ""), known)
        answer = answer_visit(request, self._store.find_visitor(visitor), self._store, visitor)
        if known == visitor:
            return answer
        kept = f"{VISIT_COOKIE}={visitor}; HttpOnly; Path=/; SameSite=lax"
        return answer._replace(headers={**answer.headers, "set-cookie": kept})

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The same by ASGI."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        request = SiteRequest(
            scope["method"],
            headers.get("host", ""),
            scope["path"],
            scope["query_string"].decode("latin-1"),
            await _read_body(receive) if scope["method"] == "POST" else b"",
        )
        answer = self.answer_request(request, headers)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": raw})
        await send({"type": "http.response.body", "body": answer.body})


def answer_visit(
    request: SiteRequest,
    db: sqlite3.Connection,
    store: SnapshotStore,
    visitor: str = "",
    written: set[str] | None = None,
) -> SiteAnswer:
    """Answer from a database; `written` collects the names of the tables that were written to."""
    site = _find_site(request.host)
    assert site is not None
    route, values = find_route(site, "GET" if request.method == "HEAD" else request.method, request.path)
    query = {key: value for key, value in _read_query(request.query).items() if key != "visit"}
    pairs = parse_qsl(
        request.body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS
    )
    _, _, port = request.host.partition(":")
    visit = Visit(
        db,
        site.name,
        request.path,
        store.rows_per_page,
        store.today,
        query,
        dict(pairs),
        f":{port}" * bool(port),
        visitor,
        set() if written is None else written,
    )
    try:
        return _answer(site, route, values, visit)
    except Exception:
        _log.exception("the page %s of %s failed", request.path, site.name)
        return make_note("Internal Server Error", 500)


def _answer(site: Site, route: PageRoute, values: Mapping[str, Any], visit: Visit) -> SiteAnswer:
    try:
        if route.private and not visit.user:
            raise PageError(403, "Please log in first.")
        answer = route.answer(visit, **values)
    except PageError as error:
        return make_page(write_document(site, visit, page(str(error))), error.status)
    if isinstance(answer, Redirect):
        set_state(visit.db, "notice", answer.notice)
        return make_redirect(answer.to)
    return make_page(write_document(site, visit, answer))


def find_route(site: Site, method: str, path: str) -> tuple[PageRoute, dict[str, Any]]:
    """The first route that fits a path, and the values in it; or the one for what is missing."""
    for known, pattern, route, readers in _compile_routes(site.name):
        if known == method and (found := pattern.fullmatch(path)):
            return route, {name: readers[name](text) for name, text in found.groupdict().items()}
    return _MISSING, {}


@lru_cache(maxsize=16)
def _compile_routes(name: str) -> list[CompiledRoute]:
    site = next(site for site in SITES if site.name == name)
    made: list[CompiledRoute] = []
    for route in (*COMMON_ROUTES, *site.routes):
        assert not re.search(r"[.*+?()]", route.path), route.path
        text = _PARTS.sub(lambda part: f"(?P<{part[1]}>{_KINDS[part[2]]})", route.path)
        readers = {part[1]: int if part[2] else str for part in _PARTS.finditer(route.path)}
        made.append((route.method, re.compile(text), route, readers))
    return made


def _show_missing(visit: Visit) -> Redirect:
    raise PageError(404, "There is nothing here.")


_MISSING = PageRoute("GET", "/", _show_missing)


@lru_cache(maxsize=256)
def _find_site(host: str) -> Site | None:
    name = host.partition(":")[0].lower()
    return next((site for site in SITES if f"{site.name}.localhost" == name), None)


def _read_query(query: str) -> dict[str, str]:
    return dict(parse_qsl(query, keep_blank_values=True))


async def _read_body(receive: Any) -> bytes:
    """The body of a form; if it is too large, only enough of it to notice that."""
    body, has_more = b"", True
    while has_more and len(body) <= MAX_BODY:
        message = await receive()
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body


def _choose_visitor(*names: str) -> str:
    for name in names:
        if re.fullmatch(r"[0-9a-f]{16}", name):
            return name
    return secrets.token_hex(8)
