"""Frames on a bare connection: the quickest way to a session.

    GET /frames, upgrade: stepwell-frames ─► 101 ─► frame, reply, frame, reply, …

A frame states its own length (`core/frames.py`), so nothing is needed around it. The guard has checked host
and key of the request that opened the connection; keys and limits are checked again for every frame, as for
a call over HTTP. Errors are `error` frames, as on a WebSocket.

Invariants
* Replies come in the order of the frames. A connection has one frame in work; what arrives meanwhile waits,
  and reading stops while more than `_MAX_WAITING_BYTES` do.
* A frame larger than `max_body_bytes`, or bytes that are not a frame, end the connection with an error frame.
* A frame has `body_timeout_s` to arrive, and the unfinished frames of one key hold at most
  `max_unfinished_bytes`. A connection that is silent for `session_timeout_s` is closed.
* The next frame is begun when the client has taken the reply before it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from stepwell.config.env_service import EnvServiceConfig
from stepwell.core import EncodingError
from stepwell.core.frames import measure_frame
from stepwell.services.errors import ErrorKind, ServiceError

_MAX_WAITING_BYTES = 65_536
_MAX_UNFINISHED_BYTES = 256 * 2**20
# The key's name and a frame: the reply's bytes, at once if nothing is to be waited for
Reply = Callable[[str, bytes | bytearray], bytes | Awaitable[bytes]]


class FrameConnections:
    """What the connections of a service share."""

    def __init__(
        self, config: EnvServiceConfig, reply: Reply, write_error: Callable[[ServiceError], bytes]
    ) -> None:
        self.config, self.reply, self.write_error = config, reply, write_error
        self.num_unfinished: Counter[str] = Counter()  # bytes of unfinished frames, by key
        self.max_unfinished_bytes = _MAX_UNFINISHED_BYTES

    def make_connection(self, owner: str, is_known: Callable[[], bool] | None) -> FrameConnection:
        """The protocol of one connection. `is_known` says whether its key, if any, is still accepted."""
        return FrameConnection(self, owner, is_known)


class FrameConnection(asyncio.Protocol):
    """One connection of one caller."""

    def __init__(self, shared: FrameConnections, owner: str, is_known: Callable[[], bool] | None) -> None:
        self._shared, self._owner, self._is_known = shared, owner, is_known
        self._config = shared.config
        self._waiting: bytes | bytearray = b""  # received, not yet begun
        self._num_counted = 0  # bytes of an unfinished frame
        self._task: asyncio.Task[None] | None = None
        self._is_read_paused = self._is_write_paused = self._is_ending = False
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.on_end: Callable[[], None] = lambda: None

    def connection_made(self, transport: Any) -> None:
        """Begin with a connection that was opened by a request."""
        self._transport: asyncio.Transport = transport
        self._loop = asyncio.get_running_loop()
        self._last_used_s = self._first_byte_s = time.monotonic()
        self._check_silence()

    def data_received(self, data: bytes) -> None:
        if self._waiting:
            if isinstance(self._waiting, bytes):  # most frames arrive at once; parts are collected
                self._waiting = bytearray(self._waiting)
            self._waiting += data
        else:
            self._waiting = data
        if self._task is None:
            self._begin_next()
        elif len(self._waiting) > _MAX_WAITING_BYTES and not self._is_read_paused:
            self._is_read_paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_ending = True
        self._timer.cancel()
        self._count_unfinished(0)
        self._can_write.set()
        self.on_end()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._can_write.set()

    def shutdown(self) -> None:
        """End after the frame in work; called when the server stops."""
        self._is_ending = True
        if self._task is None:
            self._transport.close()

    def _begin_next(self) -> None:
        """Begin the next frame if it has arrived in full."""
        body, num_bytes = self._waiting, len(self._waiting)
        try:
            size = measure_frame(body)
            if size is None or size > num_bytes or size > self._config.max_body_bytes:
                self._await_rest(size, num_bytes)
                return
        except EncodingError as error:
            self._end_with(ServiceError(ErrorKind.INVALID, f"the body is not a Stepwell frame: {error}"))
            return
        if self._num_counted:
            self._count_unfinished(0)
        if size == num_bytes:
            self._waiting = b""
        else:
            body, self._waiting = body[:size], body[size:]
        if self._is_known is not None and not self._is_known():
            self._end_with(ServiceError(ErrorKind.UNAUTHENTICATED, "unknown API key"))
            return
        reply = self._shared.reply(self._owner, body)
        if type(reply) is bytes and not self._waiting:
            self._transport.write(reply)
            self._last_used_s = time.monotonic()
            if not self._is_write_paused:
                return
            reply = b""
        # Other connections have their turn before the next frame of this one.
        self._task = self._loop.create_task(self._finish_frame(reply))

    def _await_rest(self, size: int | None, num_bytes: int) -> None:
        """Wait for the rest of a frame, unless it is or holds too much."""
        shared = self._shared
        if size is not None and size > self._config.max_body_bytes:
            message = (
                f"the frame is larger than {self._config.max_body_bytes} bytes (max_body_bytes); send less"
            )
            self._end_with(ServiceError(ErrorKind.TOO_LARGE, message))
        elif shared.num_unfinished[self._owner] - self._num_counted + num_bytes > shared.max_unfinished_bytes:
            message = "too many large frames are being sent at once; try again"
            self._end_with(ServiceError(ErrorKind.LIMITED, message, retry_after_s=1.0))
        else:
            if not self._num_counted:
                self._first_byte_s = time.monotonic()
            self._count_unfinished(num_bytes)

    async def _finish_frame(self, reply: bytes | Awaitable[bytes]) -> None:
        self._transport.write(reply if isinstance(reply, bytes) else await reply)
        if self._is_write_paused:
            await self._can_write.wait()
        self._task, self._last_used_s = None, time.monotonic()
        if self._is_ending:
            self._transport.close()
            return
        if self._waiting:
            self._begin_next()
        if self._is_read_paused and (self._task is None or len(self._waiting) <= _MAX_WAITING_BYTES):
            self._is_read_paused = False
            self._transport.resume_reading()

    def _end_with(self, error: ServiceError) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._shared.write_error(error))
            self._transport.close()

    def _count_unfinished(self, num_bytes: int) -> None:
        if num_bytes == self._num_counted:
            return
        counts = self._shared.num_unfinished
        counts[self._owner] += num_bytes - self._num_counted
        self._num_counted = num_bytes
        if not counts[self._owner]:
            del counts[self._owner]

    def _check_silence(self) -> None:
        """Close the connection if nothing, or not enough, arrives; check again later otherwise."""
        now, config = time.monotonic(), self._config
        is_slow = self._num_counted and now - self._first_byte_s >= config.body_timeout_s
        is_silent = self._task is None and now - self._last_used_s >= config.session_timeout_s
        if is_slow or (is_silent and not self._num_counted):
            self._transport.abort()
        check_s = min(config.body_timeout_s, config.session_timeout_s) / 4
        self._timer = self._loop.call_later(check_s, self._check_silence)
