"""Cookies as a browser sends them."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie


def read_cookie(header: str, name: str) -> str:
    """The value of one cookie of a `Cookie` header; empty if it is not there or the header is malformed.

    >>> read_cookie("a=1; b=2", "b")
    '2'
    """
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value
