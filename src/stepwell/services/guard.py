"""Who comes in, how often and with how much: everything that is decided before a body is read.

    request ─► key ─► rate and concurrency ─► body, counted while it is read ─► the app ─► access log

A plain ASGI layer around an app, since it runs for every request. It puts the key's name into
`scope["state"]["key_name"]`. Refusals are written by the function it is given, in whatever form the
path's API has.

Invariants
* A body is never held beyond its limit, whether it states its length or comes in chunks.
* A refused request never reaches the app; a request that the app answered is never refused afterwards.
* Whatever happens to a request, its key's count of running calls goes down again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from stepwell.services.access_log import AccessLog
from stepwell.services.gateway.exchange import Kind, Refused
from stepwell.services.keys import KeyRing
from stepwell.services.limits import Limits

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Refuse = Callable[[str, Refused, Mapping[str, str]], App]

_log = logging.getLogger(__name__)
_OPEN_PATHS = frozenset({"/health", "/ready"})


class _BodyRefused(Exception):
    """Ends the app's reading of a body that is refused while it is read."""


class Guard:
    """Lets in what is allowed."""

    def __init__(
        self,
        app: App,
        *,
        keys: KeyRing,
        limits: Limits,
        max_body_bytes: int,
        body_timeout_s: float,
        refuse: Refuse,
        log: AccessLog | None = None,
    ) -> None:
        self._app = app
        self._keys, self._limits = keys, limits
        self._max_body_bytes, self._body_timeout_s = max_body_bytes, body_timeout_s
        self._refuse = refuse
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, receive, send, self._max_body_bytes, self._body_timeout_s)
        try:
            await self._serve(visit)
        finally:
            if self._log is not None:
                self._log.write(**visit.fields())

    async def _serve(self, visit: _Visit) -> None:
        try:
            name = self._name(visit)
            visit.scope.setdefault("state", {})["key_name"] = visit.key_name = name
            if visit.scope["path"] in _OPEN_PATHS:
                await self._run(visit)
                return
            refusal = self._limits.enter(name)
            if refusal is not None:
                raise Refused(Kind.LIMITED, f"too many calls: {refusal[0]}", retry_after_s=refusal[1])
        except Refused as refused:
            await self._say(visit, refused)
            return
        try:
            await self._run(visit)
        finally:
            self._limits.leave(name)

    async def _run(self, visit: _Visit) -> None:
        try:
            visit.check_stated_length()
            await self._app(visit.scope, visit.receive, visit.send)
        except _BodyRefused:
            pass  # `visit.refused` says why; the app may as well have swallowed this
        except Refused as refused:
            visit.refused = refused
        except Exception:
            _log.exception("%s %s failed", visit.scope["method"], visit.scope["path"])
            visit.refused = Refused(Kind.INTERNAL, "the service failed; its log says why")
        if visit.refused is not None and not visit.has_begun:
            await self._say(visit, visit.refused)

    async def _say(self, visit: _Visit, refused: Refused) -> None:
        visit.refused, visit.is_refusing = refused, True
        reply = self._refuse(visit.scope["path"], refused, visit.headers)
        await reply(visit.scope, visit.receive, visit.send)

    def _name(self, visit: _Visit) -> str:
        if not self._keys.is_needed or visit.scope["path"] in _OPEN_PATHS:
            return ""
        given = visit.headers.get("authorization", "")
        key = given[7:].strip() if given[:7].lower() == "bearer " else visit.headers.get("x-api-key", "")
        if not key:
            raise Refused(
                Kind.UNAUTHENTICATED,
                "an API key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            )
        name = self._keys.name_of(key)
        if name is None:
            raise Refused(Kind.UNAUTHENTICATED, "this API key is not known here")
        return name


class _Visit:
    """One request on its way through: counts what is read and written."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, max_body_bytes: int, body_timeout_s: float
    ) -> None:
        self.scope = scope
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.key_name = ""
        self.refused: Refused | None = None
        self.is_refusing = False
        self.has_begun = False
        self._receive, self._send = receive, send
        self._max_body_bytes, self._body_timeout_s = max_body_bytes, body_timeout_s
        self._began_s = time.perf_counter()
        self._status = 0
        self._num_read = self._num_written = 0
        self._has_body = False

    def check_stated_length(self) -> None:
        length = self.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large()

    async def receive(self) -> dict[str, Any]:
        if self._has_body:
            return await self._receive()
        if self._num_read:
            message = await self._next_part()
        else:
            message = await self._receive()
        if message["type"] == "http.request":
            self._num_read += len(message.get("body", b""))
            self._has_body = not message.get("more_body", False)
            if self._num_read > self._max_body_bytes:
                self.refused = self._too_large()
                raise _BodyRefused
        return message

    async def send(self, message: dict[str, Any]) -> None:
        if self.refused is not None and not self.is_refusing:
            return  # an app's own words about a body that was refused under its hands
        if message["type"] == "http.response.start":
            self.has_begun = True
            self._status = message["status"]
        else:
            self._num_written += len(message.get("body", b""))
        await self._send(message)

    def fields(self) -> dict[str, Any]:
        """What the access log says."""
        state = self.scope.get("state") or {}
        return {
            "method": self.scope["method"],
            "path": self.scope["path"],
            "status": self._status or None,
            "ms": round(1000 * (time.perf_counter() - self._began_s), 2),
            "read": self._num_read,
            "written": self._num_written,
            "key": self.key_name,
            "session": state.get("session"),
            "client": self.scope["client"][0] if self.scope.get("client") else None,
        }

    async def _next_part(self) -> dict[str, Any]:
        left_s = self._body_timeout_s - (time.perf_counter() - self._began_s)
        try:
            return await asyncio.wait_for(self._receive(), max(0.0, left_s))
        except TimeoutError:
            self.refused = Refused(
                Kind.INVALID, f"the body took longer than {self._body_timeout_s:g} s to come"
            )
            raise _BodyRefused from None

    def _too_large(self) -> Refused:
        return Refused(
            Kind.TOO_LARGE, f"the body is larger than {self._max_body_bytes} bytes; send less at once"
        )
