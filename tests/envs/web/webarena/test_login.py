"""Logging in over HTTP to a small site with hidden fields, redirects and cookies, as the real ones have."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from stepwell.core import ConfigError
from stepwell.core.errors import EnvError
from stepwell.envs.web.webarena.accounts import WebArenaAccounts
from stepwell.envs.web.webarena.login import SessionStore
from stepwell.envs.web.webarena.sites import WebArenaSites
from stepwell.envs.web.webarena.task import WebArenaTask

FORM = """<form action="/search"><input name="q"></form><form action="/enter" method="post">
<input type="hidden" name="token" value="t1"><input type="email" name="user[login]">
<input type="password" name="user[password]"><input type="checkbox" name="stay" value="1">
<button>Go</button></form>"""
TASK = WebArenaTask(
    0, ("gitlab",), ("__GITLAB__",), "x", require_login=True, storage_state="./.auth/gitlab_state.json",
    evaluators=("url_match",),
)  # fmt: skip


class SiteHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_inside = "session=inside" in (self.headers.get("cookie") or "")
        self._send_page(200, "welcome" if is_inside else FORM, "visit=1; Path=/")

    def do_POST(self) -> None:
        sent = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        self.server.sent.append(sent)  # type: ignore[attr-defined]
        is_right = sent.get("token") == ["t1"] and sent.get("user[password]") == ["right"]
        if self.path == "/enter" and is_right:
            self._send_page(302, "", "session=inside; Path=/; HttpOnly; SameSite=Strict", place="/home")
        else:
            self._send_page(200, FORM, "visit=2; Path=/")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _send_page(self, status: int, text: str, cookie: str, place: str = "") -> None:
        self.send_response(status)
        self.send_header("set-cookie", cookie)
        self.send_header("content-length", str(len(text.encode())))
        if place:
            self.send_header("location", place)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def site() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SiteHandler) as server:
        server.sent = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def open_store(site: Any, password: str = "right", folder: Path | None = None) -> SessionStore:
    accounts = WebArenaAccounts.model_validate({"gitlab": {"username": "me@x.test", "password": password}})
    return SessionStore(WebArenaSites(gitlab=f"http://127.0.0.1:{site.server_port}"), accounts, folder)


def test_a_log_in_gives_the_cookies_of_the_session_and_is_made_once(site: Any) -> None:
    store = open_store(site)
    state = store.find_state(TASK)
    assert state is not None and store.find_state(TASK) is state
    cookies = {cookie["name"]: cookie for cookie in state["cookies"]}
    assert cookies["session"]["value"] == "inside"
    assert (cookies["session"]["httpOnly"], cookies["session"]["sameSite"]) == (True, "Strict")
    assert cookies["session"]["domain"] == "127.0.0.1"
    assert site.sent == [{"token": ["t1"], "user[login]": ["me@x.test"], "user[password]": ["right"]}]
    store.forget_states()
    assert store.find_state(TASK) is not state


def test_a_wrong_password_is_the_hosts_mistake(site: Any) -> None:
    with pytest.raises(ConfigError, match="was refused"):
        open_store(site, "wrong").find_state(TASK)


def test_a_state_in_the_hosts_folder_is_used_as_it_is(site: Any, tmp_path: Path) -> None:
    (tmp_path / "gitlab_state.json").write_text(json.dumps({"cookies": [], "origins": []}))
    assert open_store(site, "wrong", tmp_path).find_state(TASK) == {"cookies": [], "origins": []}


def test_a_task_without_log_in_has_no_state(site: Any) -> None:
    task = WebArenaTask(1, ("map",), ("__MAP__",), "x", evaluators=("url_match",))
    assert open_store(site).find_state(task) is None


def test_a_site_that_is_away_or_unnamed_is_told(site: Any) -> None:
    store = open_store(site)
    with pytest.raises(ConfigError, match=r"webarena\.sites\.gitlab"):
        SessionStore(WebArenaSites(), store.accounts).find_state(TASK)
    site.shutdown()
    site.server_close()
    with pytest.raises(EnvError, match="cannot log in"):
        store.find_state(TASK)
