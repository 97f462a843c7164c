"""The answers that our sites give: pages, redirects and notes."""

from __future__ import annotations

from urllib.parse import quote

from stepwell.envs.web.exchange import SiteAnswer

_SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_HTML, _PLAIN = "text/html; charset=utf-8", "text/plain; charset=utf-8"


def make_page(html: str, status: int = 200) -> SiteAnswer:
    """A page that may hold no scripts and is never kept by a browser."""
    body = html.encode()
    return SiteAnswer(
        status, {"content-type": _HTML, "content-length": str(len(body)), **_SAFE_HEADERS}, body
    )


def make_redirect(to: str) -> SiteAnswer:
    """A redirect after a form."""
    where = quote(to, safe=":/%#?=@[]!$&'()*+,;")
    return SiteAnswer(303, {"location": where, "content-length": "0", **_SAFE_HEADERS})


def make_note(text: str, status: int) -> SiteAnswer:
    """A line of plain text, for requests that no page answers."""
    body = text.encode()
    return SiteAnswer(status, {"content-type": _PLAIN, "content-length": str(len(body))}, body)
