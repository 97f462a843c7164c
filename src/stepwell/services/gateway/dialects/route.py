"""How a dialect handles HTTP: errors in its format, streams that start late, clients that disconnect.

* A stream's status is sent with its first item. Until then, an error is an ordinary error response.
  Afterwards it is an event in the dialect's format, and the stream ends.
* A stream runs in one task, from the first item to the last, so a gateway may hold what belongs to a task (a
  lock, a timeout) across items.
* A client that disconnects cancels its sampling, streaming or not: nobody saw the reply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, cast

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.chat import ChatCompletion, CompletionDelta, StreamItem
from stepwell.services.gateway.dialects.errors import (
    check_surrogates,
    dump_json,
    explain_invalid_body,
    make_error_response,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ERROR_KINDS = {400: ErrorKind.INVALID, 413: ErrorKind.TOO_LARGE}
_DISCONNECTED = 499  # only the access log sees it


class StreamWriter(Protocol):
    """Writes a completion piece by piece, as server-sent events of one dialect."""

    def write_start(self) -> Iterable[bytes]:
        """What comes before anything sampled."""

    def write_delta(self, delta: CompletionDelta) -> Iterable[bytes]: ...

    def write_end(self, completion: ChatCompletion) -> Iterable[bytes]: ...

    def write_error(self, failure: ServiceError) -> bytes:
        """A failure after the stream has started."""


class DialectRoute(APIRoute):
    """A route whose errors, including those of invalid bodies, have the dialect's format."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                check_surrogates(await request.body())  # the request caches its body
                return await handle(request)
            except ServiceError as error:
                failure = error
            except RequestValidationError as error:
                failure = explain_invalid_body(error)
            except HTTPException as error:  # for a body that cannot be parsed at all
                failure = ServiceError(
                    _ERROR_KINDS.get(error.status_code, ErrorKind.INVALID), f"the body: {error.detail}"
                )
            except ClientDisconnect:
                return Response(status_code=_DISCONNECTED)
            return make_error_response(request.url.path, failure, request.headers)

        return handle_errors


class EventStream(StreamingResponse):
    """A gateway's stream as server-sent events."""

    def __init__(self, request: Request, items: AsyncIterator[StreamItem], writer: StreamWriter) -> None:
        self._request, self._writer = request, writer
        self._items = cast("AsyncGenerator[StreamItem, None]", items)
        super().__init__((), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive = scope, receive
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._items) as items:
            try:
                first = await anext(items)
            except ServiceError as failure:
                error_response = make_error_response(self._request.url.path, failure, self._request.headers)
                await error_response(self._scope, self._receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send(send, b"".join((*self._writer.write_start(), *self._write_item(first))))
            await self._send_rest(send, items)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_rest(self, send: Send, items: AsyncIterator[StreamItem]) -> None:
        try:
            async for item in items:
                await self._send(send, b"".join(self._write_item(item)))
        except ServiceError as failure:
            await self._send(send, self._writer.write_error(failure))
        except Exception:  # the status is sent: only an event can still report it
            _log.exception("a stream failed")
            broken = ServiceError(ErrorKind.INTERNAL, "the stream failed inside the gateway; see its log")
            await self._send(send, self._writer.write_error(broken))

    def _write_item(self, item: StreamItem) -> Iterable[bytes]:
        return (
            self._writer.write_delta(item)
            if isinstance(item, CompletionDelta)
            else self._writer.write_end(item)
        )

    @staticmethod
    async def _send(send: Send, data: bytes) -> None:
        if data:
            await send({"type": "http.response.body", "body": data, "more_body": True})


def write_event(data: Any, name: str = "") -> bytes:
    """One server-sent event. Its data is one line, because our JSON has no newline."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {dump_json(data)}\n\n".encode("ascii")


async def run_until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`. If the client disconnects first, cancel it and raise `ClientDisconnect`."""
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            raise ClientDisconnect
        return task.result()
    finally:
        disconnect.cancel()
        task.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
