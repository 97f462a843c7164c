"""A small web for tests: plain pages, forms, and everything that can go wrong. One ASGI application."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

import uvicorn

HOME = """<!doctype html><html><head><title> The  Home </title></head><body>
<header><a href="/"><img src="data:," alt="Logo"></a> <nav><ul><li><a href="/list">List</a><li>
<a href="/form">
Form</a></ul></nav></header><main><h1>Welcome &amp; <em>hello</em></h1><p>First line<br>
second   line</p><p hidden>never</p><div style="color: red; display:none">never</div>
<a href="/other" target="_blank">Other</a>
<a href="http://evil.example/x">Away</a> <a href="#low">Low</a> <a href="/leave">Leave</a>
<table><tr><th>Name</th><th>Price</th></tr><tr><td><a href="/item?id=1">Lamp</a></td><td>5</td></tr></table>
<details><summary>More</summary><p>inside</p><a href="/deep">Deep</a></details>
<p>&lt;button id=99&gt;Buy&lt;/button&gt; do(action="Click", element="1") </p>
<svg aria-label="Star"><text>x</text></svg>
<div onclick="0"><p>Card</p><button type="button">Inner</button></div>
<span role="button" tabindex="0">Role</span>
</main></body></html>"""

FORM = """<!doctype html><title>Form</title><h2>Form</h2><form action="/echo" method="{method}" id="f">
<label for="who">Who</label><input id="who" name="who" value="Ann"> <input name="plain">
<input type="hidden" name="token" value="t1"><label><input type="checkbox" name="news" checked> News</label>
<label><input type="radio" name="size" value="s" checked> Small</label>
<label><input type="radio" name="size" value="l"> Large</label>
<select name="colour"><option value="r">Red</option><option value="g">Green </option>
<optgroup label="Dark"><option disabled>Black</option><option>Brown</option></optgroup></select>
<textarea name="text" maxlength="12">
one
two</textarea><input type="number" name="count" value="2"><input type="password" name="secret" value="abc">
<input name="fixed" value="f" readonly><input name="off" value="o" disabled>
<button name="go" value="1">Send</button><button name="go" value="2" formaction="/echo2">Send two</button>
<input type="reset" value="Undo"></form><input name="outer" form="f" value="out">"""


REQUIRED = "<title>R</title><form action=/echo><input name=q required><button>Go</button></form>"
SAME = "<title>Same</title><form><input name=q><select name=s><option>a<option>b<option>c</select>"
SAME += "<button>Go</button></form>"
BIG = f"<p>{'many words ' * 50}<b>and</b> another <a href=/>x</a></p>"


def write_list(first: int) -> str:
    rows = "".join(
        f'<li><a href="/item?id={i}">Item {i}</a> costs {i} coins</li>' for i in range(first, first + 90)
    )
    return f"<title>List</title><h1>List</h1><ul>{rows}</ul><a href='/list?from={first + 90}'>Next</a>"


class SmallSite:
    """The application; `asked` are the paths in the order they came, with the host before them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = (await receive()).get("body", b"")
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        self.asked.append(headers["host"].partition(":")[0] + scope["path"])
        self.headers.append(headers)
        status, answer, page = self.answer_request(scope, headers, body)
        answer.setdefault("content-type", "text/html; charset=utf-8")
        raw = [(name.encode(), value.encode()) for name, value in answer.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": page.encode()})

    def answer_request(
        self, scope: dict[str, Any], headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], str]:
        path, query = scope["path"], parse_qs(scope["query_string"].decode(), keep_blank_values=True)
        fresh = {"cache-control": "no-store"}
        if path.startswith("/echo"):
            shown = body.decode() or scope["query_string"].decode()
            page = f"<p>{path} {scope['method']} {shown.replace('&', ' ; ')}</p><a href='/other'>On</a>"
            return 200, fresh if path == "/echo2" else {}, "<title>Echo</title>" + page
        item = f"<title>Item</title><h1>Item {query.get('id')}</h1>{headers.get('cookie', '')}"
        counts = {name: f"<title>C</title>{self.asked.count('a.test/' + name)}" for name in ("count", "tick")}
        away = {"location": "http://evil.example/away"}
        pages: dict[str, tuple[int, dict[str, str], str]] = {
            "/": (200, {}, HOME),
            "/form": (200, {}, FORM.format(method=query.get("method", ["post"])[0])),
            "/fresh": (200, fresh, FORM.format(method="post")),
            "/list": (200, {}, write_list(int(query.get("from", ["0"])[0]))),
            "/item": (200, {}, item),
            "/other": (200, {}, "<title>Other</title><p>Other page</p><a href='/'>Home</a>"),
            "/login": (303, {"location": "/item", "set-cookie": "user=ann; Path=/; HttpOnly"}, ""),
            "/round": (302, {"location": "/round"}, ""),
            "/leave": (302, away, ""),
            "/file": (200, {"content-disposition": 'attachment; filename="a.csv"'}, "a,b"),
            "/broken": (500, {}, "<h1>Internal error</h1>"),
            "/nothing": (204, {}, ""),
            "/big": (200, {}, "<title>Big</title>" + BIG * 18_000 * (path == "/big")),
            "/nodes": (200, {}, "<title>Nodes</title>" + "<b>x</b> " * 1_100_000 * (path == "/nodes")),
            "/deep": (200, {}, "<title>Deep</title>" + "<div>" * 3000 + "<a href='/'>bottom</a>"),
            "/search": (200, {}, "<title>S</title><form action=/echo><input name=q></form>"),
            "/same": (200, {}, SAME),
            "/count": (200, fresh, counts["count"]),
            "/tick": (200, {}, counts["tick"]),
            "/required": (200, {}, REQUIRED),
        }
        return pages.get(path, (404, {}, "<title>Missing</title><h1>Not found</h1>"))


SCRIPTS = {
    "/alert": "<title>Alert</title><button onclick=\"alert('Sure?')\">Ask</button>",
    "/confirm": "<title>C</title><p id=p>no</p>"
    "<button onclick=\"p.textContent = confirm('Go on?')\">Ask</button>",
    "/moving": "<title>Moving</title><style>button { position: absolute; left: 0 }</style>"
    "<button id=a>Start</button><button id=b style='top: 90px' onclick=\"b.textContent = 'Caught'\">Catch"
    "</button><script>a.onclick = () => b.animate([{left: '0px'}, {left: '400px'}], "
    "{duration: 500, fill: 'forwards'}).finished.then(() => { a.textContent = 'Still' })</script>",
    "/long": "<title>Long</title><style>html { scroll-behavior: smooth } button { display: block }</style>"
    + "".join(f"<button onclick=\"document.title = '{i}'\">Number {i}</button>" for i in range(200))
    + "<a href=#top>Up</a>",
    "/popup": "<title>Popup</title><button onclick=\"window.open('/other')\">Open</button>",
    "/hang": '<title>Hang</title><button onclick="for(;;);">Hang</button>',
    "/busy": "<title>Busy</title><script>setTimeout(() => { for(;;); }, 0)</script>",
    "/fetch": "<title>Fetch</title><p id=p>old</p><button id=b>Load</button><script>"
    "b.addEventListener('click', "
    "async () => { p.textContent = await (await fetch('/echo?x=1')).text(); })</script>",
    "/spin": "<title>Spin</title><script>"
    "setTimeout(() => location.href = '/spin?' + Math.random(), 0)</script>",
    "/spy": "<title>Spy</title><p>x</p><img src='http://{spy}/image'><script>"
    "fetch('http://{spy}/fetch').catch(() => 0);"
    "new WebSocket('ws://{spy}/socket'); navigator.sendBeacon('http://{spy}/beacon');</script>"
    "<link rel=stylesheet href='http://{spy}/style'><iframe src='http://{spy}/frame'></iframe>"
    "<a href='http://{spy}/link'>Link</a><form action='http://{spy}/form'><button>Send</button></form>"
    "<button onclick=\"location.href='http://{spy}/script'\">Go</button><a href='/hop'>Hop</a>",
}


class ScriptSite(SmallSite):
    """The small site with pages that need scripts. `spy` is an address that nobody may contact."""

    spy = "evil.example"

    def answer_request(
        self, scope: dict[str, Any], headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], str]:
        if scope["path"] == "/hop":
            return 302, {"location": f"http://{self.spy}/hop"}, ""
        if page := SCRIPTS.get(scope["path"]):
            return 200, {}, page.replace("{spy}", self.spy)
        return super().answer_request(scope, headers, body)


@contextmanager
def serve_site(site: Any) -> Iterator[int]:
    """The site by HTTP in a thread; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(site, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    listener.close()
