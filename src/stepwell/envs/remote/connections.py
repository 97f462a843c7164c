"""The three ways by which frames reach a server.

FrameStream       nothing but frames, after an HTTP request that asks for it; the quickest
HttpCalls         a frame per HTTP request; for servers and proxies that refuse the first
WebSocketFrames   a frame per message of a WebSocket (`ws://…`)
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol
from urllib.parse import urlsplit

from stepwell.core import ConfigError, EncodingError
from stepwell.core.frames import measure_frame
from stepwell.envs.remote import wire
from stepwell.envs.remote.http_connection import HttpConnection, Wait, is_readable, open_socket

KEY_VARIABLE = "STEPWELL_ENV_KEY"
_READ_BYTES, _MAX_HEAD_BYTES = 262_144, 65_536


class Connection(Protocol):
    """Sends frames and receives their replies, one after another."""

    def send(self, body: bytes, wait: Wait) -> tuple[int, bytes, bool]:
        """Return status, body, and whether the body is a frame. `OSError` if the connection broke.

        `wait` is called with the longest time to wait for an answer at once.
        """

    def close(self) -> None: ...


class FrameStream:
    """Frames and nothing else. `open` gives None if the server does not speak so."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened

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
                opened.settimeout(timeout_s)
                return cls(opened)
        except BaseException:
            opened.close()
            raise
        opened.close()
        return None

    def send(self, body: bytes, wait: Wait) -> tuple[int, bytes, bool]:
        self._socket.sendall(body)
        wait(lambda timeout_s: is_readable(self._socket, timeout_s))
        try:
            return 200, self._read_frame(), True
        except EncodingError as error:
            raise OSError(f"its reply is not a frame: {error}") from error

    def close(self) -> None:
        self._socket.close()

    def _read_frame(self) -> bytes:
        data = self._receive(_READ_BYTES)
        size = measure_frame(data)
        if size == len(data):
            return data
        parts = bytearray(data)
        while size is None or len(parts) < size:
            parts += self._receive(_READ_BYTES if size is None else size - len(parts))
            size = measure_frame(parts)
        if len(parts) > size:
            raise EncodingError("more bytes follow than the frame has")
        return bytes(parts)

    def _receive(self, num_bytes: int) -> bytes:
        data = self._socket.recv(num_bytes)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data


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
