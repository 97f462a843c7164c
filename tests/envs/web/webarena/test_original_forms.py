"""Five local sites whose log-in forms have the fields, tokens and addresses of WebArena's own sites.

Each page has other forms before the log-in (search, newsletter). A token is good for one visitor, once. The
names of the fields are those of Magento, Postmill and GitLab; the map has no log-in.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.envs.web.conftest import needs_chromium

from stepwell.envs import make_env

OTHERS = """<form action="/search" method="get"><input type="hidden" name="form_key" value="old">
<input name="q"></form><form action="/news" method="post"><input type="email" name="email"></form>"""


@dataclass
class SiteModel:
    """Where the log-in is, what its form looks like, and what it must send besides the token."""

    login: str = ""
    form: str = ""
    token: str = ""
    wanted: dict[str, list[str]] = field(default_factory=dict)
    post_to: str = ""
    has_wrong_posts: bool = False
    logins: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)  # of visitors
    inside: set[str] = field(default_factory=set)


def make_models() -> dict[str, SiteModel]:
    magento = """<input name="form_key" type="hidden" value="TOKEN">
    <input type="{kind}" name="login[username]" value="">
    <input type="password" name="login[password]"><button name="send" type="submit">Sign In</button>"""
    named = {"login[username]": ["me"], "login[password]": ["right"]}
    return {
        "shopping": SiteModel(
            "/customer/account/login/",
            '<form action="http://HOST/customer/account/loginPost/" method="post" id="login-form">'
            + magento.format(kind="email"),
            "form_key",
            named,
            "/customer/account/loginPost/",
        ),
        "shopping_admin": SiteModel(
            "/admin",
            '<form method="post" action="" id="login-form">' + magento.format(kind="text"),
            "form_key",
            named,
            "/admin",
        ),
        "reddit": SiteModel(
            "/login",
            """<form action="/login_check" method="POST"><input type="text" name="_username" value="">
            <input type="password" name="_password"><input type="checkbox" name="_remember_me" checked>
            <input type="hidden" name="_csrf_token" value="TOKEN">""",
            "_csrf_token",
            {"_username": ["me"], "_password": ["right"]},
            "/login_check",
        ),
        "gitlab": SiteModel(
            "/users/sign_in",
            """<form action="/users/sign_in" accept-charset="UTF-8" method="post">
            <input type="hidden" name="authenticity_token" value="TOKEN" autocomplete="off">
            <input type="text" name="user[login]"><input type="password" name="user[password]">
            <input name="user[remember_me]" type="hidden" value="0">
            <input type="checkbox" value="1" name="user[remember_me]"><button>Sign in</button>""",
            "authenticity_token",
            {"user[login]": ["me"], "user[password]": ["right"]},
            "/users/sign_in",
        ),
        "map": SiteModel(),
    }


class OriginalHandler(BaseHTTPRequestHandler):
    """One of the five sites."""

    def do_GET(self) -> None:
        model, visitor = self.server.model, self._read_visitor()  # type: ignore[attr-defined]
        is_inside = visitor in model.inside
        if urlsplit(self.path).path == model.login and not is_inside:
            model.tokens[visitor] = secrets.token_hex(8)
            form = model.form.replace("TOKEN", model.tokens[visitor]).replace("HOST", self.headers["host"])
            self._send_page(f"{OTHERS}{form}</form>", visitor)
        else:
            self._send_page(f"<h1>{'Hello me' if is_inside else 'Hello stranger'}</h1>", visitor)

    def do_POST(self) -> None:
        model, visitor = self.server.model, self._read_visitor()  # type: ignore[attr-defined]
        sent = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
        token = model.tokens.pop(visitor, None)
        is_right = self.path == model.post_to and sent.get(model.token) == [token]
        if is_right and all(sent.get(name) == value for name, value in model.wanted.items()):
            renewed = secrets.token_hex(8)  # a log-in starts a new session
            model.inside.add(renewed)
            model.logins.append(renewed)
            self._send_page("", renewed, place="/home/")
        else:
            model.has_wrong_posts = True
            self._send_page("", visitor, place=model.login)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _read_visitor(self) -> str:
        found = SimpleCookie(self.headers.get("cookie") or "").get("PHPSESSID")
        return secrets.token_hex(8) if found is None else found.value

    def _send_page(self, text: str, visitor: str, place: str = "") -> None:
        self.send_response(302 if place else 200)
        self.send_header("content-type", "text/html; charset=UTF-8")
        self.send_header("set-cookie", f"PHPSESSID={visitor}; path=/; HttpOnly; SameSite=Lax")
        self.send_header("content-length", str(len(text)))
        if place:
            self.send_header("location", place)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def servers() -> Iterator[dict[str, Any]]:
    """The five sites on hosts of their own, as cookies do not know ports."""
    with ExitStack() as stack:
        found = {}
        for number, (name, model) in enumerate(make_models().items(), start=2):
            server = stack.enter_context(ThreadingHTTPServer((f"127.0.0.{number}", 0), OriginalHandler))
            server.model = model  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            found[name] = server
        yield found


@pytest.mark.parametrize("driver", ["light", pytest.param("chromium", marks=needs_chromium)])
def test_five_addresses_are_enough_for_the_forms_of_the_original_sites(
    servers: dict[str, Any], tmp_path: Path, driver: str
) -> None:
    urls = {name: "http://{}:{}".format(*server.server_address) for name, server in servers.items()}
    urls["shopping_admin"] += "/admin"
    entries = [
        {
            "task_id": number,
            "sites": [name],
            "require_login": name != "map",
            "storage_state": None if name == "map" else f"./.auth/{name}_state.json",
            "start_url": f"__{name.upper()}__",
            "intent": "Say done.",
            "eval": {
                "eval_types": ["string_match", "url_match"],
                "reference_answers": {"exact_match": "done"},
                "reference_url": f"__{name.upper()}__",
                "url_note": "GOLD in PRED",
            },
        }
        for number, name in enumerate(urls)
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(entries))
    account = {"username": "me", "password": "right"}
    options = {"sites": urls, "accounts": {name: account for name in urls if name != "map"}}
    options["tasks"] = str(tmp_path / "tasks.json")
    with make_env("web", {"source": "webarena", "driver": driver, "webarena": options}) as env:
        begun = set()
        for seed in range(50):
            task = env.make_task(env.options, seed)
            if task.id in begun:
                continue
            begun.add(task.id)
            shown, _ = env.reset(options={"task": task})
            is_map = f"URL: {urls['map']}" in shown.text
            assert ("Hello stranger" if is_map else "Hello me") in shown.text, shown.text
            shown, *_ = env.step(['do(action="Goto", argument="http://127.0.0.9/")'])
            assert "is not allowed here" in shown.text
            _, reward, is_over, _, _ = env.step(['exit(message="done")'])
            assert is_over and reward == 1.0
    assert len(begun) == 5
    assert not any(server.model.has_wrong_posts for server in servers.values())
    assert [len(server.model.logins) for server in servers.values()] == [1, 1, 1, 1, 0]
