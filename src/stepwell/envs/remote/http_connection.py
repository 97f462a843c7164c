"""One HTTP connection to an environment server, kept open between calls.

The standard library's client takes longer for the headers of a reply than the server for a turn. This one
knows only what a reply of ours needs: a status, the length or the chunks of the body, its type, and whether
the connection ends. A request is one write, so that it travels as one packet.
"""

from __future__ import annotations

import http.client
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import BinaryIO
from urllib.parse import urlsplit

MAX_LINE_BYTES, MAX_HEADERS = 65_536, 100
Wait = Callable[[Callable[[float], bool]], None]


class HttpConnection:
    """Posts bodies to one path. Opens its socket at once, and again after a reply that closes it."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, connect_timeout_s: float, timeout_s: float
    ) -> None:
        parts = urlsplit(url)
        self._url = url
        self._connect_timeout_s, self._timeout_s = connect_timeout_s, timeout_s
        lines = [f"POST {parts.path or '/'} HTTP/1.1", f"host: {parts.netloc.rpartition('@')[2]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join([*lines, "content-length: "]).encode("latin-1")
        self._socket: socket.socket | None = None
        self._open()

    def post(self, body: bytes, wait: Wait) -> tuple[int, bytes, str]:
        """Status, body and content type of the reply. `wait` is called between request and reply."""
        if self._socket is None:
            self._open()
        assert self._socket is not None
        self._socket.sendall(b"%s%d\r\n\r\n%s" % (self._head, len(body), body))
        wait(self._is_readable)
        status, headers = self._read_head()
        if "chunked" in headers.get("transfer-encoding", "").lower():
            answer = self._read_chunks()
        else:
            answer = self._read_bytes(_parse_size(headers.get("content-length", ""), 10))
        if "close" in headers.get("connection", "").lower():
            self.close()
        return status, answer, headers.get("content-type", "")

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._reader.close()
            self._socket.close()
            self._socket = None

    def _open(self) -> None:
        self._socket = open_socket(self._url, self._connect_timeout_s, self._timeout_s)
        self._reader = _open_reader(self._socket)

    def _read_head(self) -> tuple[int, dict[str, str]]:
        words = self._read_line().split(None, 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise http.client.BadStatusLine(" ".join(words)[:64])
        headers: dict[str, str] = {}
        while line := self._read_line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
            if len(headers) > MAX_HEADERS:
                raise http.client.HTTPException(f"got more than {MAX_HEADERS} headers")
        return int(words[1]), headers

    def _read_chunks(self) -> bytes:
        chunks = []
        while size := _parse_size(self._read_line().partition(";")[0], 16):
            chunks.append(self._read_bytes(size))
            self._read_line()
        while self._read_line():
            pass  # trailers
        return b"".join(chunks)

    def _read_line(self) -> str:
        line = self._reader.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise http.client.RemoteDisconnected("the server closed the connection inside its reply")
        return line.rstrip(b"\r\n").decode("latin-1")

    def _read_bytes(self, size: int) -> bytes:
        body = self._reader.read(size)
        if len(body) < size:
            raise http.client.IncompleteRead(body, size - len(body))
        return body

    def _is_readable(self, timeout_s: float) -> bool:
        assert self._socket is not None
        return is_readable(self._socket, timeout_s)


def open_socket(url: str, connect_timeout_s: float, timeout_s: float) -> socket.socket:
    """A socket to the host of an http:// or https:// address."""
    parts = urlsplit(url)
    is_safe, host = parts.scheme == "https", parts.hostname or ""
    opened = socket.create_connection((host, parts.port or (443 if is_safe else 80)), connect_timeout_s)
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_safe:
            opened = ssl.create_default_context().wrap_socket(opened, server_hostname=host)
        opened.settimeout(timeout_s)
    except BaseException:
        opened.close()
        raise
    return opened


def is_readable(opened: socket.socket, timeout_s: float) -> bool:
    """Whether bytes arrive within the time."""
    has_more = isinstance(opened, ssl.SSLSocket) and opened.pending() > 0
    return has_more or bool(select.select([opened], [], [], timeout_s)[0])


def _open_reader(opened: socket.socket) -> BinaryIO:
    return opened.makefile("rb")


def _parse_size(text: str, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError:
        size = -1
    if size < 0:
        raise http.client.HTTPException(f"the reply states no length, but {text[:32]!r}")
    return size
