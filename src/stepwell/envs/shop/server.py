"""The shop as a web application: calls for worlds, pages for people, from the same shop.

POST /about /goal /enter /step /plan /state    JSON in, JSON out        (client.py speaks this)
GET  /?seed=N                                  a task of the shop, as a page
GET  /page?seed=N&view=V                       where somebody is
GET  /go?seed=N&view=V&action=A                applies an action, and shows where it led
GET  /health                                   is the process there

What is refused has a status and one sentence. Run as a program, it serves one shop on a free port of this
machine, prints its address, and ends when its standard input does.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from stepwell import __version__
from stepwell.core import InputError, StepwellError
from stepwell.envs.shop.goal import Goal
from stepwell.envs.shop.html_pages import HEADERS, address, document, html_page
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.shop import Seen, Shop, open_shop
from stepwell.envs.shop.view import MAX_ACTION_CHARS, View

MAX_BODY_BYTES = 256 * 1024
_MAX_SEED = 2**63


def create_shop_app(shop: Shop) -> FastAPI:
    """The application of a shop."""
    app = FastAPI(title="Stepwell shop", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)

    async def call(request: Request) -> Response:
        answer = _CALLS[request.url.path[1:]](shop, _read(await _body(request)))
        return _said(answer)

    for name in _CALLS:
        app.router.add_route(f"/{name}", call, methods=["POST"])
    app.router.add_route("/health", _health, methods=["GET"])
    for path, handle in (("/", _first), ("/page", _page), ("/go", _go)):
        app.router.add_route(path, _for_people(shop, handle), methods=["GET"])
    for kind in (StepwellError, HTTPException):
        app.add_exception_handler(kind, _refuse)
    return app


def _goal(shop: Shop, body: dict[str, Any]) -> dict[str, Any]:
    return {"goal": shop.goal(_seed(body.get("seed"))).to_json()}


def _step(shop: Shop, body: dict[str, Any]) -> dict[str, Any]:
    action = body.get("action")
    if not isinstance(action, str):
        raise InputError("action must be a text")
    return _told(shop.step(*_place(body), action))


def _plan(shop: Shop, body: dict[str, Any]) -> dict[str, Any]:
    return shop.plan(*_place(body))._asdict()


_CALLS: dict[str, Callable[[Shop, dict[str, Any]], Any]] = {
    "about": lambda shop, body: shop.about(),
    "goal": _goal,
    "enter": lambda shop, body: _told(shop.enter(Goal.from_json(body.get("goal")))),
    "step": _step,
    "plan": _plan,
    "state": lambda shop, body: shop.state(*_place(body)),
}


def _place(body: dict[str, Any]) -> tuple[Goal, View]:
    return Goal.from_json(body.get("goal")), View.from_json(body.get("view"))


def _told(seen: Seen) -> dict[str, Any]:
    score = None if seen.score is None else seen.score.to_json()
    return {"view": seen.view.to_json(), "text": seen.text, "actions": seen.actions, "score": score}


async def _body(request: Request) -> bytes:
    """The body, unless it is larger than any call needs."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise HTTPException(413, f"a call has at most {MAX_BODY_BYTES} bytes")
    return bytes(data)


def _read(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InputError("the body must be a JSON object")
    return body


def _seed(value: Any) -> int:
    try:
        seed = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"seed must be a whole number, got {str(value)[:40]!r}") from error
    if not 0 <= seed < _MAX_SEED:
        raise InputError(f"seed must lie between 0 and {_MAX_SEED}")
    return seed


def _for_people(shop: Shop, handle: Callable[[Shop, int, Any], Response]) -> Any:
    """A page, or a page that says what was wrong with the address."""

    async def answer(request: Request) -> Response:
        try:
            seed = _seed(request.query_params.get("seed", "0"))
            return handle(shop, seed, request.query_params)
        except InputError as error:
            return _html(document(f"<p>{escape(str(error))}</p><p><a href='/'>to the shop</a></p>"), 400)

    return answer


def _first(shop: Shop, seed: int, given: Any) -> Response:
    return _html(html_page(shop.page(shop.goal(seed), View()), seed))


def _page(shop: Shop, seed: int, given: Any) -> Response:
    return _html(html_page(shop.page(shop.goal(seed), _view(given)), seed))


def _go(shop: Shop, seed: int, given: Any) -> Response:
    action = given.get("action") or f"search[{given.get('words', '')[: MAX_ACTION_CHARS - 8]}]"
    view = _view(given)
    shop.page(shop.goal(seed), view)  # an address that leads nowhere is refused before anything is done there
    return RedirectResponse(address(shop.move(view, action), seed), 303)


def _view(given: Any) -> View:
    return View.from_json(_read(given.get("view", "").encode()))


async def _health(request: Request) -> Response:
    return _said({"status": "ok"})


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, headers=HEADERS, media_type="text/html; charset=utf-8")


def _said(value: Any, status: int = 200) -> Response:
    """JSON in plain ASCII: whatever characters a caller sent, they can be sent back."""
    return Response(json.dumps(value, separators=(",", ":")), status, media_type="application/json")


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _said({"detail": str(error.detail)}, error.status_code)
    return _said({"detail": str(error)}, 400 if isinstance(error, InputError) else 500)


def main() -> None:
    """Serve the shop of the options given as JSON, until standard input ends."""
    import uvicorn

    app = create_shop_app(open_shop(ShopOptions.model_validate_json(sys.argv[1])))
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))

    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
