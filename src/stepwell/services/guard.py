"""Access control in front of a service: everything that is decided before the app sees a request.

    request ─► host ─► key ─► body (size and time) ─► rate and concurrency ─► the app ─► access log

`Guard` is a plain ASGI middleware, because it runs for every request. It stores the key's name in
`scope["state"]["key_name"]`. Errors are written by the function it is given, in the format of the path's API.

Invariants
* A body never occupies more memory than its limit, whether it states its length or arrives in chunks. It has
  `body_timeout_s` from the end of the headers (headers have their own timeout: `http_protocol.py`).
* A JSON body holds at most `MAX_JSON_VALUES` values. Checking a value takes microseconds of the event loop,
  so a few megabytes of ones would stall all other callers.
* A request counts against its key once it has arrived completely. Before that only its bytes count: the
  unfinished bodies of one key hold at most `max_unfinished_bytes`.
* A refused request never reaches the app. A request that the app answered is never refused afterwards.
* Whatever happens to a request, its key's count of running calls goes down again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from stepwell.services import pages
from stepwell.services.access_log import AccessLog
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.hosts import HostCheck
from stepwell.services.keys import KeyRing, read_key
from stepwell.services.limits import ServiceLimits

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
ErrorWriter = Callable[[str, ServiceError, Mapping[str, str]], App]

_log = logging.getLogger(__name__)
_OPEN_PATHS = frozenset({"/health", "/ready"}) | pages.OPEN_PATHS
_NOT_ALLOWED = 1008  # WebSocket close code
MAX_JSON_VALUES = 2**17


class _ClientLeftError(Exception):
    """The client disconnected before its request was complete."""


class Guard:
    """ASGI middleware that checks host, key, body size and rate limits."""

    def __init__(
        self,
        app: App,
        *,
        keys: KeyRing,
        limits: ServiceLimits,
        max_body_bytes: int,
        body_timeout_s: float,
        hosts: HostCheck,
        write_error: ErrorWriter,
        max_unfinished_bytes: int = 256 * 2**20,
        log: AccessLog | None = None,
    ) -> None:
        self._app = app
        self._keys, self._limits = keys, limits
        self._max_body_bytes, self._body_timeout_s = max_body_bytes, body_timeout_s
        self._hosts, self._write_error = hosts, write_error
        self._unfinished: Counter[str] = Counter()  # bytes of unfinished bodies, by key
        self._max_unfinished_bytes = max_unfinished_bytes
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._check_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _GuardedRequest(scope, receive, send, self._max_body_bytes)
        try:
            await self._serve_request(request)
        finally:
            if self._log is not None:
                self._log.write(**request.describe())

    async def _check_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._hosts.check_headers(_read_headers(scope))
        except ServiceError:
            await receive()
            await send({"type": "websocket.close", "code": _NOT_ALLOWED})  # not accepted: HTTP 403
            return
        await self._app(scope, receive, send)

    async def _serve_request(self, request: _GuardedRequest) -> None:
        try:
            self._hosts.check_headers(request.headers)
            name = self._find_key_name(request)
            request.scope.setdefault("state", {})["key_name"] = request.key_name = name
            if request.scope["path"] in _OPEN_PATHS:
                await self._run_app(request)
                return
            _raise_if_limited(self._limits.explain_refusal(name))
            await self._read_body(request, name)
            request.check_num_values()
            _raise_if_limited(self._limits.start_call(name))
        except _ClientLeftError:
            return
        except ServiceError as error:
            await self._send_error(request, error)
            return
        try:
            await self._run_app(request)
        finally:
            self._limits.end_call(name)

    async def _read_body(self, request: _GuardedRequest, name: str) -> None:
        """Read the whole body before anything is counted or done."""
        request.check_stated_length()
        num_read = 0
        try:
            async with asyncio.timeout(self._body_timeout_s):
                while (size := await request.read_part()) is not None:
                    num_read += size
                    self._unfinished[name] += size
                    if self._unfinished[name] > self._max_unfinished_bytes:
                        raise ServiceError(
                            ErrorKind.LIMITED,
                            "too many large bodies are being sent at once; try again",
                            retry_after_s=1.0,
                        )
        except TimeoutError:
            raise ServiceError(
                ErrorKind.INVALID,
                f"the body did not arrive within {self._body_timeout_s:g} s (body_timeout_s)",
            ) from None
        finally:
            self._unfinished[name] -= num_read
            if not self._unfinished[name]:
                del self._unfinished[name]

    async def _run_app(self, request: _GuardedRequest) -> None:
        try:
            await self._app(request.scope, request.receive, request.send)
        except ServiceError as error:
            request.error = error
        except Exception:
            _log.exception("%s %s failed", request.scope["method"], request.scope["path"])
            request.error = ServiceError(ErrorKind.INTERNAL, "the service failed; see its log")
        if request.error is not None and not request.has_started:
            await self._send_error(request, request.error)

    async def _send_error(self, request: _GuardedRequest, error: ServiceError) -> None:
        request.error = error
        reply = self._write_error(request.scope["path"], error, request.headers)
        await reply(request.scope, request.receive, request.send)

    def _find_key_name(self, request: _GuardedRequest) -> str:
        if not self._keys.is_needed or request.scope["path"] in _OPEN_PATHS:
            return ""
        key = read_key(request.headers)
        if not key:
            raise ServiceError(
                ErrorKind.UNAUTHENTICATED,
                "an API key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            )
        name = self._keys.find_name(key)
        if name is None:
            raise ServiceError(ErrorKind.UNAUTHENTICATED, "unknown API key")
        return name


class _GuardedRequest:
    """One request on its way through the guard. Counts the bytes read and written."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body_bytes: int) -> None:
        self.scope = scope
        self.headers = _read_headers(scope)
        self.key_name = ""
        self.error: ServiceError | None = None
        self.has_started = False
        self._receive, self._send = receive, send
        self._max_body_bytes = max_body_bytes
        self._start_s = time.perf_counter()
        self._status = 0
        self._num_read = self._num_written = 0
        self._parts: list[bytes] = []
        self._has_body = self._is_delivered = False

    def check_stated_length(self) -> None:
        length = self.headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._make_too_large_error()

    async def read_part(self) -> int | None:
        """Read and store the next part of the body. Return its size, or None when the body is complete."""
        if self._has_body:
            return None
        message = await self._receive()
        if message["type"] != "http.request":
            raise _ClientLeftError
        part = message.get("body", b"")
        self._parts.append(part)
        self._num_read += len(part)
        self._has_body = not message.get("more_body", False)
        if self._num_read > self._max_body_bytes:
            raise self._make_too_large_error()
        return len(part)

    def check_num_values(self) -> None:
        """Refuse JSON of too many values. A smaller body cannot hold them: each takes two bytes."""
        kind = self.headers.get("content-type", "application/json")
        if self._num_read <= 2 * MAX_JSON_VALUES or "json" not in kind:
            return
        self._parts = [b"".join(self._parts)]
        if _holds_more_values(self._parts[0], MAX_JSON_VALUES):
            raise ServiceError(
                ErrorKind.TOO_LARGE,
                f"the body holds more than {MAX_JSON_VALUES} values of JSON; send fewer at once",
            )

    async def receive(self) -> dict[str, Any]:
        """What the app reads: first the stored body, then the client's further messages."""
        if self._is_delivered or not self._has_body:
            return await self._receive()
        self._is_delivered = True
        body = b"".join(self._parts)
        self._parts.clear()
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self._status = message["status"]
        else:
            self._num_written += len(message.get("body", b""))
        await self._send(message)

    def describe(self) -> dict[str, Any]:
        """The fields of the access log."""
        state = self.scope.get("state") or {}
        return {
            "method": self.scope["method"],
            "path": self.scope["path"],
            "status": self._status or None,
            "ms": round(1000 * (time.perf_counter() - self._start_s), 2),
            "read": self._num_read,
            "written": self._num_written,
            "key": self.key_name,
            "session": state.get("session"),
            "client": self.scope["client"][0] if self.scope.get("client") else None,
        }

    def _make_too_large_error(self) -> ServiceError:
        return ServiceError(
            ErrorKind.TOO_LARGE,
            f"the body is larger than {self._max_body_bytes} bytes (max_body_bytes); send less",
        )


def _holds_more_values(body: bytes, most: int) -> bool:
    """Whether a JSON text has more values than `most`, keys of objects not counted."""
    try:
        left = [json.loads(body)]
    except (ValueError, RecursionError):
        return False  # the app says what is wrong
    count = 0
    while left and count <= most:
        one = left.pop()
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        count += len(inner)
        left += [value for value in inner if isinstance(value, (dict, list))]
    return count > most


def _read_headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _raise_if_limited(reason: tuple[str, float] | None) -> None:
    if reason is not None:
        raise ServiceError(ErrorKind.LIMITED, f"too many calls: {reason[0]}", retry_after_s=reason[1])
