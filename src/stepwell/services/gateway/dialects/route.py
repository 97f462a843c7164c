"""How a dialect meets HTTP: refusals in its form, streams that begin late, clients that hang up.

* A stream's status is sent when its first item is there: until then a refusal is an ordinary
  error reply. Afterwards it is an event in the dialect's form, and the stream ends.
* All of a stream runs in one task, from the first item to the last, so that a gateway may hold
  what belongs to a task (a lock, a timeout) across its items.
* A client that hangs up cancels its sampling, streaming or not: nobody saw the answer.
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
from stepwell.services.gateway.chat import ChatCompletion, CompletionDelta
from stepwell.services.gateway.dialects.errors import (
    check_surrogates,
    dump_json,
    explain_invalid_body,
    make_error_response,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)
_KINDS = {400: ErrorKind.INVALID, 413: ErrorKind.TOO_LARGE}
_HUNG_UP = 499  # nobody reads it but the access log


class StreamWriter(Protocol):
    """Writes an answer piece by piece, as server-sent events of one dialect."""

    def write_start(self) -> Iterable[bytes]:
        """What comes before anything sampled."""
        ...

    def write_delta(self, delta: CompletionDelta) -> Iterable[bytes]: ...

    def write_end(self, completion: ChatCompletion) -> Iterable[bytes]: ...

    def write_error(self, refused: ServiceError) -> bytes:
        """A failure after the stream has begun."""
        ...


class DialectRoute(APIRoute):
    """A route whose refusals, also of bodies that do not parse, have the dialect's form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                check_surrogates(await request.body())  # kept by the request, read once
                return await handle(request)
            except ServiceError as error:
                refused = error
            except RequestValidationError as error:
                refused = explain_invalid_body(error)
            except HTTPException as error:  # of a body that cannot be parsed at all
                refused = ServiceError(
                    _KINDS.get(error.status_code, ErrorKind.INVALID), f"the body: {error.detail}"
                )
            except ClientDisconnect:
                return Response(status_code=_HUNG_UP)
            return make_error_response(request.url.path, refused, request.headers)

        return handle_errors


class EventStream(StreamingResponse):
    """Items of a gateway's stream as server-sent events."""

    def __init__(
        self, request: Request, items: AsyncIterator[CompletionDelta | ChatCompletion], writer: StreamWriter
    ) -> None:
        self._request, self._writer = request, writer
        self._items = cast("AsyncGenerator[CompletionDelta | ChatCompletion, None]", items)
        super().__init__((), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive = scope, receive
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._items) as items:
            try:
                first = await anext(items)
            except ServiceError as refused:
                error_response = make_error_response(self._request.url.path, refused, self._request.headers)
                await error_response(self._scope, self._receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send(send, b"".join((*self._writer.write_start(), *self._write_item(first))))
            await self._send_rest(send, items)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_rest(self, send: Send, items: AsyncIterator[CompletionDelta | ChatCompletion]) -> None:
        try:
            async for item in items:
                await self._send(send, b"".join(self._write_item(item)))
        except ServiceError as refused:
            await self._send(send, self._writer.write_error(refused))
        except Exception:  # the status is out: an event is all that can still be said
            _log.exception("a stream broke off")
            broken = ServiceError(
                ErrorKind.INTERNAL, "the stream broke off inside the gateway; its log says why"
            )
            await self._send(send, self._writer.write_error(broken))

    def _write_item(self, item: CompletionDelta | ChatCompletion) -> Iterable[bytes]:
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
    """One server-sent event; its data are one line, since JSON text of ours has no newline."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {dump_json(data)}\n\n".encode("ascii")


async def run_until_disconnect(request: Request, work: Awaitable[T]) -> T:
    """The answer; if the client hangs up first, its work is cancelled and `ClientDisconnect` raised."""
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
