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
from typing import Any

MAX_HEADER_BYTES = 65_536
FRAMES, TAKE_OVER = "stepwell-frames", "stepwell.take_over"
_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: %s\r\n\r\n"


def make_http_protocol(header_timeout_s: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol with a timeout for headers and an upgrade to frames."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class TimedProtocol(base):  # type: ignore[misc]  # uvicorn has two parsers
        """One connection."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._timer: asyncio.TimerHandle | None = None
            self._num_header_bytes = 0

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._start_timer()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_serving:
                self._stop_timer()
                return
            self._start_timer()
            if self.cycle is None or not self.cycle.more_body:
                self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._close_connection()

        def on_headers_complete(self) -> None:  # called by httptools only: with h11 there is no upgrade
            super().on_headers_complete()
            if self._get_upgrade() == FRAMES.encode() and self.cycle is not None:
                self.scope["extensions"] = {TAKE_OVER: self._hand_over}

        def _unsupported_upgrade_warning(self) -> None:
            if self._get_upgrade() != FRAMES.encode():
                super()._unsupported_upgrade_warning()

        def _hand_over(self, protocol: Any) -> None:
            """Answer the request with 101 and give the connection to the protocol."""
            self._stop_timer()
            self._unset_keepalive_if_required()
            self.cycle.disconnected = True  # nothing more is sent here
            if self.transport.is_closing():
                return
            self.connections.discard(self)
            self.connections.add(protocol)  # the server ends it by its `shutdown`
            protocol.on_end = lambda: self.connections.discard(protocol)
            self.transport.set_protocol(protocol)
            protocol.connection_made(self.transport)
            self.transport.write(_SWITCHED % FRAMES.encode())

        def handle_websocket_upgrade(self, *args: Any) -> None:
            self._stop_timer()
            super().handle_websocket_upgrade(*args)

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(error)

        @property
        def _is_serving(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _start_timer(self) -> None:
            if self._timer is None and not self.transport.is_closing():
                self._timer = self.loop.call_later(header_timeout_s, self._close_connection)

        def _stop_timer(self) -> None:
            self._num_header_bytes = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close_connection(self) -> None:
            self._stop_timer()
            if not self.transport.is_closing():
                self.transport.abort()

    return TimedProtocol
