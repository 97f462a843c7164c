"""A small server that speaks the hub's endpoints: enough to download a model and to upload one."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """Models by id, who may read them, and what was uploaded."""

    url: str = ""
    models: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_test"
    uploaded: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


@contextmanager
def serve_hub() -> Iterator[HubServer]:
    hub = HubServer()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        self.state.requests.append(f"{self.command} {self.path}")

    def do_HEAD(self) -> None:
        self._read()

    def do_GET(self) -> None:
        self._read()

    def do_POST(self) -> None:
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {self.state.token}":
            self._answer(401, {"error": "Invalid username or password."})
            return
        path = unquote(urlsplit(self.path).path)
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.state.uploaded.setdefault(name, {})
            self._answer(200, {"url": f"{self.state.url}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [{"path": one["path"], "uploadMode": "regular"} for one in json.loads(body)["files"]]
            self._answer(200, {"files": [one | {"shouldIgnore": False} for one in files]})
        elif "/commit/" in path:
            name = path.removeprefix("/api/models/").partition("/commit/")[0]
            for line in body.strip().split(b"\n"):
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    self.state.uploaded[name][entry["value"]["path"]] = content
            url = f"{self.state.url}/{name}/commit/{COMMIT}"
            self._answer(200, {"commitUrl": url, "commitOid": COMMIT})
        else:
            self._answer(404, {"error": path})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _read(self) -> None:
        path = unquote(urlsplit(self.path).path)
        is_api = path.startswith("/api/models/")
        name = "/".join(path.removeprefix("/api/models" if is_api else "").split("/")[1:3])
        rest = path.partition(name + "/")[2]
        if name in self.state.uploaded and name not in self.state.models:
            self._answer(200, {"id": name, "sha": COMMIT, "siblings": []})
            return
        folder = self.state.models.get(name)
        if folder is None:
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif name in self.state.gated and self.headers.get("Authorization") != f"Bearer {self.state.token}":
            self._answer(401, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        elif not any(part in rest for part in ("main", COMMIT)):
            self._answer(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
        elif is_api and rest.startswith("tree/"):
            self._answer(200, [_entry(file) for file in sorted(folder.iterdir())])
        elif is_api:
            siblings = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
            self._answer(200, {"id": name, "sha": COMMIT, "siblings": siblings})
        else:
            self._send_file(folder / rest.split("/")[-1])

    def _send_file(self, file: Path) -> None:
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        self._send(200, content, headers)

    def _answer(self, code: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._send(code, json.dumps(value).encode(), {"Content-Type": "application/json"} | (headers or {}))

    def _send(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {
        "type": "file",
        "path": file.name,
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }
