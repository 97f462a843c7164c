"""Who may see the pages: everyone with the token, from this machine's own address.

    request ─► Host and Origin (`services/hosts.py`) ─► token ─► for changes: the token in a header ─► the app

The token is made at the start and printed as a link. Opening the link stores it as a cookie for this site
and leaves the address without it. Changes (tags, controls) also need it in a header, which no other page on
this machine can send. Answers forbid the page to load or send anything elsewhere.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from stepwell.core.cookies import read_cookie
from stepwell.services.errors import ServiceError
from stepwell.services.hosts import HostCheck
from stepwell.services.keys import read_key

HEADER = "x-stepwell-token"
_COOKIE = "stepwell_view"
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; media-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_MAX_BODY = 65_536


def make_token() -> str:
    """A fresh token of 256 random bits."""
    return secrets.token_urlsafe(32)


class ViewAccess:
    """ASGI middleware that checks host, token and size of a request."""

    def __init__(self, app: Any, *, token: str | None, hosts: HostCheck) -> None:
        self._app, self._token, self._hosts = app, token, hosts

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:  # a WebSocket, which no page opens
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refuse(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def send_safely(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in known),
                ]
            await send(message)

        await self._app(scope, receive, send_safely)

    def _refuse(self, scope: dict[str, Any]) -> Response | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self._hosts.check_headers(headers)
        except ServiceError as error:
            return PlainTextResponse(str(error), 403)
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _MAX_BODY or "transfer-encoding" in headers:
            return PlainTextResponse("send at most 64 kB, with its length", 413)
        if self._token is None or scope["path"] == "/health":
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if scope["method"] == "GET" and self._is_token(dict(query).get("token", "")):
            return self._welcome(scope["path"], [(name, text) for name, text in query if name != "token"])
        given = headers.get(HEADER) or read_key(headers)
        if scope["method"] in ("GET", "HEAD"):
            given = given or read_cookie(headers.get("cookie", ""), _COOKIE)
        if not self._is_token(given):
            return PlainTextResponse("open the link that `stepwell view` printed; it contains the token", 401)
        return None

    def _is_token(self, given: str) -> bool:
        return self._token is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        target = path if path.startswith("/") and not path.startswith("//") else "/"
        reply = RedirectResponse(target + (f"?{urlencode(query)}" if query else ""), 303)
        assert self._token is not None
        reply.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict", path="/")
        return reply
