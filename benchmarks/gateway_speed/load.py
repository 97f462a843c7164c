"""The load generator: many sessions over raw HTTP connections, so that the servers are the bottleneck.

Each session keeps one connection, makes the calls of one conversation after the other, and begins a
new conversation when one is over. Nothing is parsed but status and length; a status other than 200
ends the measurement with what the server said.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_numbers = itertools.count()


@dataclass(frozen=True)
class Side:
    """A server under load. `by_session`: calls name their session in the path."""

    url: str
    pid: int
    key: str
    by_session: bool = False


class Connection(asyncio.Protocol):
    """One keep-alive connection with one call at a time."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._needed = -1  # bytes of the whole response, once its head is there
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._needed < 0:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._data[:end]).lower()
            at = head.find(b"content-length:")
            if at < 0:
                self._fail(f"a response without a length: {head[:200]!r}")
                return
            self._needed = end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self._data) >= self._needed and self._answer is not None:
            response, self._data, self._needed = bytes(self._data), bytearray(), -1
            self._answer.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the server hung up ({error!r})")

    def _fail(self, words: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError(words))

    async def call(self, request: bytes) -> bytes:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        response = await self._answer
        if not response.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server refused: {response[-500:]!r}")
        return response

    def close(self) -> None:
        self._transport.close()


def requests_of(side: Side, bodies: list[bytes]) -> Iterator[bytes]:
    """The calls of one session after another, ready to be written."""
    host = urlsplit(side.url).netloc
    tails = [
        f" HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAuthorization: Bearer {side.key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
        for body in bodies
    ]
    while True:
        path = f"/s/load-{next(_numbers)}/v1/chat/completions" if side.by_session else "/v1/chat/completions"
        for tail in tails:
            yield b"POST " + path.encode() + tail


async def load(side: Side, bodies: list[bytes], num_sessions: int, seconds: float) -> tuple[list[float], int]:
    """Latencies in ms of the calls that ended within `seconds`, and how many calls there were in all.

    A fifth of the time before is not counted: connections, caches and sessions are made in it.
    """
    made = [await connected(side) for _ in range(num_sessions)]
    latencies: list[float] = []
    begin = time.perf_counter() + seconds / 5
    num_calls = 0

    async def session(connection: Connection) -> None:
        nonlocal num_calls
        for request in requests_of(side, bodies):
            start = time.perf_counter()
            await connection.call(request)
            end = time.perf_counter()
            num_calls += 1
            if end >= begin + seconds:
                return
            if end >= begin:
                latencies.append((end - start) * 1000)

    try:
        await asyncio.gather(*(session(connection) for connection in made))
    finally:
        for connection in made:
            connection.close()
    if not latencies:
        raise RuntimeError(
            f"no call of {num_sessions} sessions ended within {seconds} s; give more --seconds"
        )
    return latencies, num_calls


async def connected(side: Side) -> Connection:
    parts = urlsplit(side.url)
    _, connection = await asyncio.get_running_loop().create_connection(Connection, parts.hostname, parts.port)
    return connection


async def once(side: Side, bodies: list[bytes]) -> bytes:
    """The response to one call."""
    connection = await connected(side)
    try:
        return await connection.call(next(requests_of(side, bodies)))
    finally:
        connection.close()


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
