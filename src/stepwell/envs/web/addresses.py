"""Addresses: what an agent or a page asks for, made absolute, and whether it may be contacted.

An allowed host is `host` (any port), `host:port`, or `*.domain` (every host below it, with or without a
port). Both drivers ask `AllowedHosts` before they go anywhere; Chromium's own resolver follows the same
rules (`write_resolver_rules`), so that what a script or a redirect asks for is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from stepwell.core import InputError

BLANK = "about:blank"
_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(?:/|$)")
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9_.-]+(?::\d{1,5})?|\[[0-9A-Fa-f:]+\](?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The hosts that an episode may contact."""

    hosts: tuple[str, ...]

    @classmethod
    def from_names(cls, names: Sequence[str]) -> AllowedHosts:
        """Check the names; they become a browser's flags, so nothing else may be in them."""
        for name in names:
            if not _HOST.fullmatch(name):
                raise InputError(f"an allowed host is host, host:port or *.domain, not {name!r}")
        return cls(tuple(sorted({name.lower() for name in names})))

    def allow_address(self, url: str) -> bool:
        """Whether a page of this address may be opened."""
        return _allow_address(self.hosts, url)


@lru_cache(maxsize=8192)
def _allow_address(hosts: tuple[str, ...], url: str) -> bool:
    if url == BLANK:
        return True
    parts = split_address(url)
    if parts is None:
        return False
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    return any(_match_host(pattern, host, port) for pattern in hosts)


def split_address(url: str) -> SplitResult | None:
    """The parts of a web address; None if it is none."""
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in _PORTS and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return None
    return parts if is_web else None


@lru_cache(maxsize=8192)
def resolve_address(text: str, base: str) -> str:
    """An absolute address for what was written in a page or by an agent; "" if it is not a web address.

    It is written as browsers write it: host in small letters, without a usual port or a user's name.

    >>> resolve_address("http://Shop.localhost:80/a b", "about:blank"), resolve_address("../x", "http://h/a/b")
    ('http://shop.localhost/a%20b', 'http://h/x')
    """
    text = "".join(text.split("\n")).strip()
    if text == BLANK:
        return BLANK
    try:
        joined = urljoin(base if base != BLANK else "", text)
    except ValueError:
        return ""
    parts = split_address(joined)
    if parts is None:
        return ""
    port = "" if parts.port in (None, _PORTS[parts.scheme]) else f":{parts.port}"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    whole = urlunsplit(parts._replace(netloc=f"{host}{port}", path=parts.path or "/"))
    return quote(whole, safe="%/:=&?~#+!$,;'@()*[]") + "#" * (joined[-1] == "#" and whole[-1] != "#")


def resolve_typed_address(text: str, base: str) -> str:
    """As `resolve_address`, for an address that a person typed: the scheme may be missing."""
    text = text.strip()
    is_relative = text.startswith(("/", "?", "#"))
    if text and not is_relative and (not _SCHEME.match(text) or _HOST_AND_PORT.match(text)):
        text = "http://" + text
    return resolve_address(text, base)


def write_resolver_rules(allowed: AllowedHosts, port: int | None) -> str:
    """Chromium's `--host-resolver-rules`: the allowed hosts, and nothing else.

    With `port`, the allowed hosts are served on this machine at that port, whatever their names.
    """
    rules = []
    for name in allowed.hosts:
        if port is not None:
            rules.append(f"MAP {name} 127.0.0.1:{port}")
        elif name.startswith("*."):
            rules.append(f"EXCLUDE {name}")
        else:
            rules.append(f"MAP {name} {name}")
    return ", ".join([*rules, "MAP * ~NOTFOUND"])


def _match_host(pattern: str, host: str, port: int) -> bool:
    name, _, number = pattern.partition(":") if not pattern.startswith("[") else (pattern[1:-1], "", "")
    if number and int(number) != port:
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
