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

from stepwell.services.gateway.dialects.refusals import (
    dumps,
    refusal_response,
    refuse_half_pairs,
    refused_body,
)
from stepwell.services.gateway.exchange import Answer, Delta, Kind, Refused

T = TypeVar("T")
_log = logging.getLogger(__name__)
_KINDS = {400: Kind.INVALID, 413: Kind.TOO_LARGE}
_HUNG_UP = 499  # nobody reads it but the access log


class StreamWriter(Protocol):
    """Writes an answer piece by piece, as server-sent events of one dialect."""

    def begin(self) -> Iterable[bytes]:
        """What comes before anything sampled."""
        ...

    def delta(self, delta: Delta) -> Iterable[bytes]: ...

    def end(self, answer: Answer) -> Iterable[bytes]: ...

    def failed(self, refused: Refused) -> bytes:
        """A failure after the stream has begun."""
        ...


class DialectRoute(APIRoute):
    """A route whose refusals, also of bodies that do not parse, have the dialect's form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def refusing(request: Request) -> Response:
            try:
                refuse_half_pairs(await request.body())  # kept by the request, read once
                return await handle(request)
            except Refused as error:
                refused = error
            except RequestValidationError as error:
                refused = refused_body(error)
            except HTTPException as error:  # of a body that cannot be parsed at all
                refused = Refused(_KINDS.get(error.status_code, Kind.INVALID), f"the body: {error.detail}")
            except ClientDisconnect:
                return Response(status_code=_HUNG_UP)
            return refusal_response(request.url.path, refused, request.headers)

        return refusing


class EventStream(StreamingResponse):
    """Items of a gateway's stream as server-sent events."""

    def __init__(self, request: Request, items: AsyncIterator[Delta | Answer], writer: StreamWriter) -> None:
        self._request, self._writer = request, writer
        self._items = cast("AsyncGenerator[Delta | Answer, None]", items)
        super().__init__((), media_type="text/event-stream", headers={"cache-control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive = scope, receive
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._items) as items:
            try:
                first = await anext(items)
            except Refused as refused:
                reply = refusal_response(self._request.url.path, refused, self._request.headers)
                await reply(self._scope, self._receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send(send, b"".join((*self._writer.begin(), *self._written(first))))
            await self._send_rest(send, items)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_rest(self, send: Send, items: AsyncIterator[Delta | Answer]) -> None:
        try:
            async for item in items:
                await self._send(send, b"".join(self._written(item)))
        except Refused as refused:
            await self._send(send, self._writer.failed(refused))
        except Exception:  # the status is out: an event is all that can still be said
            _log.exception("a stream broke off")
            broken = Refused(Kind.INTERNAL, "the stream broke off inside the gateway; its log says why")
            await self._send(send, self._writer.failed(broken))

    def _written(self, item: Delta | Answer) -> Iterable[bytes]:
        return self._writer.delta(item) if isinstance(item, Delta) else self._writer.end(item)

    @staticmethod
    async def _send(send: Send, data: bytes) -> None:
        if data:
            await send({"type": "http.response.body", "body": data, "more_body": True})


def event(data: Any, name: str = "") -> bytes:
    """One server-sent event; its data are one line, since JSON text of ours has no newline."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {dumps(data)}\n\n".encode("ascii")


async def unless_gone(request: Request, answer: Awaitable[T]) -> T:
    """The answer; if the client hangs up first, its work is cancelled and `ClientDisconnect` raised."""
    work = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_hung_up(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait((work,))
            raise ClientDisconnect
        return work.result()
    finally:
        gone.cancel()
        work.cancel()


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
