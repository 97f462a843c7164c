"""The three ways by which frames reach a server.

FrameStream       nothing but frames, after an HTTP request that asks for it; the quickest
HttpCalls         a frame per HTTP request; for servers and proxies that refuse the first
WebSocketFrames   a frame per message of a WebSocket (`ws://…`)
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import sys
from typing import Protocol
from urllib.parse import urlsplit

from stepwell.core import ConfigError, EncodingError
from stepwell.core.frames import measure_frame
from stepwell.envs.remote import wire
from stepwell.envs.remote.http_connection import HttpConnection, Wait, open_socket

KEY_VARIABLE = "STEPWELL_ENV_KEY"
_READ_BYTES, _MAX_HEAD_BYTES = 262_144, 65_536
_CLOSED = "the server closed the connection"


class Connection(Protocol):
    """Sends frames and receives their replies, one after another."""

    def send(self, body: bytes, wait: Wait) -> tuple[int, bytes, bool]:
        """Return status, body, and whether the body is a frame. `OSError` if the connection broke.

        `wait` is called with the longest time to wait for an answer at once.
        """

    def close(self) -> None: ...


class FrameStream:
    """Frames and nothing else. `open` gives None if the server does not speak so."""

    def __init__(self, opened: socket.socket, timeout_s: float) -> None:
        self._socket, self._timeout_s = opened, timeout_s
        self._answer, self._wait_s = b"", 0.0
        # Python's own limit costs a further system call each time, so the system's is used where there is one
        self._has_system_limit = not isinstance(opened, ssl.SSLSocket) and sys.platform != "win32"
        if self._has_system_limit:
            opened.settimeout(None)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _pack_time(timeout_s))

    @classmethod
    def open(
        cls, url: str, headers: dict[str, str], connect_timeout_s: float, timeout_s: float
    ) -> FrameStream | None:
        """Ask the server for a stream of frames."""
        parts = urlsplit(url)
        lines = [f"GET {parts.path}/frames HTTP/1.1", f"host: {parts.netloc.rpartition('@')[2]}"]
        lines += ["connection: upgrade", "upgrade: stepwell-frames"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        opened = open_socket(url, connect_timeout_s, connect_timeout_s)
        try:
            opened.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
            if _read_status(opened) == 101:
                return cls(opened, timeout_s)
        except BaseException:
            opened.close()
            raise
        opened.close()
        return None

    def send(self, body: bytes, wait: Wait) -> tuple[int, bytes, bool]:
        if not self._has_system_limit:
            self._limit_wait(self._timeout_s)
        self._socket.sendall(body)
        wait(self._has_answer)
        try:
            if measure_frame(self._answer) == len(self._answer):
                return 200, self._answer, True
            return 200, self._read_rest(), True
        except EncodingError as error:
            raise OSError(f"its reply is not a frame: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def _has_answer(self, timeout_s: float) -> bool:
        """Wait for the first bytes of an answer; most often they are all of it."""
        if timeout_s != self._wait_s:
            self._limit_wait(timeout_s)
        try:
            self._answer = self._socket.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError):
            return False
        if not self._answer:
            raise ConnectionResetError(_CLOSED)
        return True

    def _limit_wait(self, timeout_s: float) -> None:
        """Limit the time until the next bytes come."""
        self._wait_s = timeout_s
        if self._has_system_limit:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _pack_time(timeout_s))
        else:
            self._socket.settimeout(timeout_s)

    def _read_rest(self) -> bytes:
        parts = bytearray(self._answer)
        size = measure_frame(parts)
        while size is None or len(parts) < size:
            try:
                more = self._socket.recv(_READ_BYTES if size is None else size - len(parts))
            except (TimeoutError, BlockingIOError):
                if self._wait_s >= self._timeout_s:
                    raise
                self._limit_wait(self._timeout_s)
                continue
            if not more:
                raise ConnectionResetError(_CLOSED)
            parts += more
            size = measure_frame(parts)
        if len(parts) > size:
            raise EncodingError("more bytes follow than the frame has")
        return bytes(parts)


def _pack_time(seconds: float) -> bytes:
    """C's `struct timeval`."""
    return struct.pack("ll", *divmod(max(1, round(seconds * 1e6)), 1_000_000))


def _read_status(opened: socket.socket) -> int:
    """The status of a reply; its headers are read too."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = opened.recv(4096)
        if not part or len(head) > _MAX_HEAD_BYTES:
            raise ConnectionResetError("the server closed the connection inside its reply")
        head += part
    words = head.split(None, 2)
    return int(words[1]) if words[0].startswith(b"HTTP/1.") and words[1].isdigit() else 0


class HttpCalls:
    """Frames as bodies of HTTP requests, on a connection that is kept open between calls."""

    def __init__(self, url: str, headers: dict[str, str], connect_timeout_s: float, timeout_s: float) -> None:
        headers = {**headers, "content-type": wire.CONTENT_TYPE}
        self._connection = HttpConnection(
            f"{url}/call", headers, connect_timeout_s=connect_timeout_s, timeout_s=timeout_s
        )

    def send(self, body: bytes, wait: Wait) -> tuple[int, bytes, bool]:
        status, answer, content_type = self._connection.post(body, wait)
        return status, answer, content_type == wire.CONTENT_TYPE

    def close(self) -> None:
        self._connection.close()


class WebSocketFrames:
    """Frames as messages of a WebSocket."""

    def __init__(self, url: str, headers: dict[str, str], connect_timeout_s: float) -> None:
        try:
            from websockets.exceptions import InvalidStatus, WebSocketException
            from websockets.sync.client import connect
        except ImportError as error:
            raise ConfigError("env servers over ws:// need the package websockets; or use http://") from error
        self._error = WebSocketException
        self._answer: str | bytes = b""
        self._opened = contextlib.ExitStack()
        try:
            opening = connect(
                f"{url}/ws", additional_headers=headers, open_timeout=connect_timeout_s, max_size=None,
                compression=None, proxy=None,
            )  # fmt: skip
            self._socket = self._opened.enter_context(opening)
        except InvalidStatus as error:
            if error.response.status_code in (401, 403):
                raise ConfigError(f"{url}: this key is not known there ({KEY_VARIABLE})") from error
            raise OSError(str(error)) from error
        except (WebSocketException, TimeoutError) as error:
            raise OSError(str(error)) from error

    def send(self, body: bytes, wait: Wait) -> tuple[int, bytes, bool]:
        try:
            self._socket.send(body)
            wait(self._has_answer)
        except (self._error, TimeoutError) as error:
            raise OSError(str(error)) from error
        answer = self._answer
        return (200, answer.encode(), False) if isinstance(answer, str) else (200, answer, True)

    def close(self) -> None:
        self._opened.close()

    def _has_answer(self, timeout_s: float) -> bool:
        try:
            self._answer = self._socket.recv(timeout=timeout_s)
        except TimeoutError:
            return False
        return True
