"""The pages `/` and `/docs` of a service, as HTML that loads nothing from elsewhere.

Both show only what is the same for everyone, so they need no key. `/` has calls to copy, with the address
that it was asked at. What asks for no HTML (curl) gets it as plain text.
"""

from __future__ import annotations

import re
from html import escape, unescape
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

OPEN_PATHS = frozenset({"/", "/docs"})
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.3rem .8rem .3rem 0;vertical-align:top}"
    "pre{white-space:pre-wrap;background:#8881;padding:.6rem .8rem;border-radius:.4rem}"
)
_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


def add_pages(
    app: FastAPI,
    about: str,
    examples: tuple[tuple[str, str], ...],
    others: tuple[tuple[str, str, str], ...] = (),
    *,
    needs_key: bool = False,
) -> None:
    """Add both pages.

    `examples` are calls to copy: a path, and the JSON of its body, if it has one. `others` are calls missing
    from OpenAPI: method, path, description.
    """

    @app.get("/", include_in_schema=False)
    async def show_service(request: Request) -> Response:
        links = "".join(
            f"<li><a href='{path}'>{path}</a>: {description}</li>\n" for path, description in _LINKS
        )
        root = str(request.base_url).rstrip("/")
        calls = "\n".join(_write_call(root, path, body, needs_key) for path, body in examples)
        body = f"<p>{escape(about)}</p>\n<ul>{links}</ul>\n<pre>{escape(calls)}</pre>"
        return _write_page(request, app.title, body)

    @app.get("/docs", include_in_schema=False)
    async def show_calls(request: Request) -> Response:
        rows = "".join(_write_row(*call) for call in (*_list_routes(app.openapi()), *others))
        head = "<tr><th>call</th> <th>what it does</th></tr>\n"
        body = f"<p>{escape(about)}</p>\n<table>{head}{rows}</table>"
        return _write_page(request, f"{app.title}: calls", body)


def _write_call(root: str, path: str, body: str, needs_key: bool) -> str:
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    sent = f" -H 'content-type: application/json' -d '{body}'" if body else ""
    return f"curl {root}{path}{key}{sent}"


_LINKS = (
    ("/docs", "every call in one line"),
    ("/openapi.json", "the same for programs, with every field (needs a key if keys are set)"),
    ("/health", "whether the process is running"),
    ("/ready", "whether it can serve calls"),
)


def _list_routes(described: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (method.upper(), path, str(call.get("description") or call.get("summary") or ""))
        for path, calls in described["paths"].items()
        for method, call in calls.items()
    ]


def _write_row(method: str, path: str, description: str) -> str:
    return f"<tr><td><code>{escape(f'{method} {path}')}</code></td> <td>{escape(description)}</td></tr>\n"


def _write_page(request: Request, title: str, body: str) -> Response:
    if "text/html" not in request.headers.get("accept", ""):
        text = unescape(re.sub("<[^>]*>", "", body)).strip()
        return PlainTextResponse(f"{title}\n\n{text}\n", headers=_HEADERS)
    head = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    return HTMLResponse(f"{head}<h1>{escape(title)}</h1>{body}", headers=_HEADERS)
