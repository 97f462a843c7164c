"""The client's HTTP connection: replies of any form, and what is no reply."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from stepwell.envs.remote.http_connection import HttpConnection

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\n\r\nyes"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nye\r\n1;x=y\r\ns\r\n0\r\nend: 1\r\n\r\n"
LAST = b"HTTP/1.1 503 Busy\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno"
Serve = Callable[[list[bytes]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves replies, one per request; a reply that closes, or is broken, ends its connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run(replies: list[bytes]) -> None:
        while replies:
            taken, _ = listener.accept()
            with taken:
                while replies and taken.recv(65_536):
                    reply = replies.pop(0)
                    taken.sendall(reply)
                    if reply not in (PLAIN, CHUNKS):
                        break

    def start(replies: list[bytes]) -> str:
        threading.Thread(target=run, args=(replies,), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/call"

    yield start
    listener.close()


def connect(url: str) -> HttpConnection:
    return HttpConnection(url, {"x": "y"}, connect_timeout_s=60, timeout_s=60)


def wait(is_there: Callable[[float], bool]) -> None:
    assert is_there(60.0)


def test_replies_with_a_length_in_chunks_and_after_a_closed_connection(serve: Serve) -> None:
    connection = connect(serve([PLAIN, CHUNKS, LAST, PLAIN]))
    found = [connection.post(b"ask", wait) for _ in range(4)]
    assert found == [(200, b"yes", "a/b"), (200, b"yes", ""), (503, b"no", ""), (200, b"yes", "a/b")]
    connection.close()
    connection.close()


@pytest.mark.parametrize(
    "reply",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nyes",
        b"HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\nyes",
        b"HTTP/1.1 200 OK\r\n\r\nyes",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"h%d: 1\r\n" % n for n in range(200)) + b"\r\n",
    ],
)
def test_what_is_no_reply_is_refused(serve: Serve, reply: bytes) -> None:
    connection = connect(serve([reply]))
    with pytest.raises((http.client.HTTPException, OSError)):
        connection.post(b"ask", wait)
    connection.close()
