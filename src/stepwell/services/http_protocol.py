"""Closes connections that send nothing, or send too slowly; hands a connection to another protocol.

uvicorn waits for the headers of a request for ever. This protocol gives them `header_timeout_s`, counted from
the start of a connection and again from the first byte of each later request. When the time is up, the
connection is closed. It never reached the app and counts against no key.

A request with `upgrade: stepwell-frames` reaches the app like any other, with a function in its scope
(`scope["extensions"][TAKE_OVER]`) by which the app continues the connection with a protocol of its own.

Invariants
* No timer runs here while a request is served: the guard (`guard.py`) times bodies, the app times replies.
* Bytes that arrive after the reply to a request (the rest of a refused body) have the same timeout.
* Headers hold at most `MAX_HEADER_BYTES`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

MAX_HEADER_BYTES = 65_536
FRAMES, TAKE_OVER = "stepwell-frames", "stepwell.take_over"
_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: %s\r\n\r\n"


class HeaderTimer:
    """Closes a connection whose headers take longer than `timeout_s`, or hold too many bytes."""

    def __init__(self, connection: Any, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._num_bytes = 0

    def start(self) -> None:
        """Start to count, unless it runs already."""
        if self._timer is None and not self._connection.transport.is_closing():
            self._timer = self._connection.loop.call_later(self._timeout_s, self.close_connection)

    def stop(self) -> None:
        """All headers have arrived."""
        self._num_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def count_bytes(self, num_bytes: int) -> None:
        """Bytes of headers that came; too many of them close the connection."""
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_HEADER_BYTES:
            self.close_connection()

    def close_connection(self) -> None:
        """End the connection without a reply."""
        self.stop()
        if not self._connection.transport.is_closing():
            self._connection.transport.abort()


def make_http_protocol(header_timeout_s: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol with a timeout for headers and an upgrade to frames."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class TimedProtocol(base):  # type: ignore[misc]  # uvicorn has two parsers
        """One connection."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.header_timer = HeaderTimer(self, header_timeout_s)

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.header_timer.start()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:  # a request is served
                self.header_timer.stop()
                return
            self.header_timer.start()
            if self.cycle is None or not self.cycle.more_body:
                self.header_timer.count_bytes(len(data))

        def on_headers_complete(self) -> None:  # called by httptools only: with h11 there is no upgrade
            super().on_headers_complete()
            if self._get_upgrade() == FRAMES.encode() and self.cycle is not None:
                self.scope["extensions"] = {TAKE_OVER: partial(_hand_over, self)}

        def _unsupported_upgrade_warning(self) -> None:
            if self._get_upgrade() != FRAMES.encode():
                super()._unsupported_upgrade_warning()

        def handle_websocket_upgrade(self, *args: Any) -> None:
            self.header_timer.stop()
            super().handle_websocket_upgrade(*args)

        def connection_lost(self, error: Exception | None) -> None:
            self.header_timer.stop()
            super().connection_lost(error)

    return TimedProtocol


def _hand_over(connection: Any, protocol: Any) -> None:
    """Answer the request of a connection with 101 and give the connection to the protocol."""
    connection.header_timer.stop()
    connection._unset_keepalive_if_required()
    connection.cycle.disconnected = True  # nothing more is sent here
    if connection.transport.is_closing():
        return
    connection.connections.discard(connection)
    connection.connections.add(protocol)  # the server ends it by its `shutdown`
    protocol.on_end = lambda: connection.connections.discard(protocol)
    connection.transport.set_protocol(protocol)
    protocol.connection_made(connection.transport)
    connection.transport.write(_SWITCHED % FRAMES.encode())
