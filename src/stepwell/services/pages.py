"""The pages `/` and `/docs` of a service, as HTML that loads nothing from elsewhere.

Both show only what is the same for everyone, so they need no key.
"""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse

OPEN_PATHS = frozenset({"/", "/docs"})
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.3rem .8rem .3rem 0;vertical-align:top}"
)
_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


def add_pages(app: FastAPI, about: str, others: tuple[tuple[str, str, str], ...] = ()) -> None:
    """Add both pages. `others` are calls missing from OpenAPI: method, path, description."""

    @app.get("/", include_in_schema=False)
    async def show_service() -> HTMLResponse:
        links = "".join(
            f"<li><a href='{path}'>{path}</a>: {description}</li>" for path, description in _LINKS
        )
        return _write_page(app.title, f"<p>{escape(about)}</p><ul>{links}</ul>")

    @app.get("/docs", include_in_schema=False)
    async def show_calls() -> HTMLResponse:
        rows = "".join(_write_row(*call) for call in (*_list_routes(app.openapi()), *others))
        head = "<tr><th>call</th><th>what it does</th></tr>"
        return _write_page(f"{app.title}: calls", f"<p>{escape(about)}</p><table>{head}{rows}</table>")


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
    return f"<tr><td><code>{escape(f'{method} {path}')}</code></td><td>{escape(description)}</td></tr>"


def _write_page(title: str, body: str) -> HTMLResponse:
    head = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    return HTMLResponse(f"{head}<h1>{escape(title)}</h1>{body}", headers=_HEADERS)
