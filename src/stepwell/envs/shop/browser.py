"""The shop for people: its pages in a browser. Environments share a shop through the environment service.

GET /?seed=N                       a task of the shop, as a page
GET /page?seed=N&view=V            the page of a view
GET /go?seed=N&view=V&action=A     applies an action and redirects to the page it leads to

All links are relative, so the application can be mounted anywhere (`stepwell serve shop`: at `/shop`). An
address that is wrong gets a page that says what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from stepwell.core import InputError
from stepwell.envs.shop.html_pages import HEADERS, format_address, wrap_document, write_html_page
from stepwell.envs.shop.shop import Shop
from stepwell.envs.shop.view import MAX_ACTION_CHARS, View

_MAX_SEED = 2**63
Query = Mapping[str, str]


def create_browser_app(shop: Shop) -> Starlette:
    """Create the web application with the pages of `shop`."""
    handlers = (("/", _show_start), ("/page", _show_page), ("/go", _apply_action))
    return Starlette(routes=[Route(path, _answer_with(shop, handle)) for path, handle in handlers])


def _answer_with(shop: Shop, handle: Callable[[Shop, int, Query], Response]) -> Any:
    async def answer(request: Request) -> Response:
        try:
            return handle(shop, _read_seed(request.query_params.get("seed", "0")), request.query_params)
        except InputError as error:
            text = f"<p>{escape(str(error))}</p><p><a href='./'>to the shop</a></p>"
            return _to_response(wrap_document(text), 400)

    return answer


def _show_start(shop: Shop, seed: int, query: Query) -> Response:
    return _to_response(write_html_page(shop.page(shop.goal(seed), View()), seed))


def _show_page(shop: Shop, seed: int, query: Query) -> Response:
    return _to_response(write_html_page(shop.page(shop.goal(seed), _read_view(query)), seed))


def _apply_action(shop: Shop, seed: int, query: Query) -> Response:
    action = query.get("action") or f"search[{query.get('words', '')[: MAX_ACTION_CHARS - 8]}]"
    view = _read_view(query)
    shop.page(shop.goal(seed), view)  # refuses a view that does not exist before anything is done there
    return RedirectResponse(format_address(shop.move(view, action), seed), 303)


def _read_seed(text: str) -> int:
    try:
        seed = int(text)
    except ValueError as error:
        raise InputError(f"seed must be a whole number, got {text[:40]!r}") from error
    if not 0 <= seed < _MAX_SEED:
        raise InputError(f"seed must lie between 0 and {_MAX_SEED}")
    return seed


def _read_view(query: Query) -> View:
    try:
        return View.from_json(json.loads(query.get("view", "")))
    except (ValueError, RecursionError) as error:
        raise InputError(f"view is not JSON: {error}") from error


def _to_response(text: str, status: int = 200) -> Response:
    return Response(text, status, headers=HEADERS, media_type="text/html; charset=utf-8")
