"""Serves the pages of MiniWoB++ on this machine, for a browser.

One server per process, started by the first episode, on a free port of the loopback address. The browser
is sent there whenever it asks for the host `miniwob.localhost`, and for no other host.
"""

from __future__ import annotations

import mimetypes
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from stepwell.core import InputError
from stepwell.envs.web.miniwob.pages import read_file

HOST = "miniwob.localhost"


@cache
def serve_pages() -> int:
    """Start the server once; return its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _PageHandler)
    threading.Thread(target=server.serve_forever, name="miniwob pages", daemon=True).start()
    return int(server.server_address[1])


def make_page_url(name: str, seed: int) -> str:
    """The address of a task with a seed, as a browser asks for it."""
    return f"http://{HOST}/miniwob/{name}.html?seed={seed}"


class _PageHandler(BaseHTTPRequestHandler):
    """Answers with files of the package."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a file, or 404."""
        parts = urlsplit(self.path)
        try:
            content = read_file(unquote(parts.path), parse_qs(parts.query).get("seed", [None])[0])
        except (InputError, ValueError):
            content = None
        kind = mimetypes.guess_type(parts.path)[0] or "application/octet-stream"
        self.send_response(404 if content is None else 200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content or b"")))
        if content is not None and not parts.query:  # the package's files as they are; pages have a seed
            self.send_header("cache-control", "max-age=86400")
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: Any) -> None:
        """Requests are not worth a line."""
