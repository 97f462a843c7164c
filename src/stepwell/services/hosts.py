"""Checks that a request was meant for this service, by its Host and Origin headers.

A service on loopback needs no key, so a web page that the user has open must not reach it. A page of another
site sends its own `Origin`. A page whose name was pointed to 127.0.0.1 (DNS rebinding) sends its own name as
`Host`. Both are refused. A service that other machines can reach needs a key for every call, which no page
has; there, hosts are checked only if `allowed_hosts` is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from stepwell.services.errors import ErrorKind, ServiceError

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class HostCheck:
    """Refuses requests for other hosts and from other sites."""

    def __init__(self, *, is_loopback: bool, host: str, allowed_hosts: Sequence[str] = ()) -> None:
        allowed = {name.lower() for name in allowed_hosts}
        self._is_checked = is_loopback or bool(allowed)
        self._hosts = _LOOPBACK | allowed | {host.lower()}

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Raise `ServiceError` if Host or Origin names another site."""
        if not self._is_checked:
            return
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and _parse_hostname(f"//{host}") not in self._hosts:
            raise ServiceError(ErrorKind.FORBIDDEN, _explain_foreign_host("Host", host))
        if origin is not None and _parse_hostname(origin) not in self._hosts:
            raise ServiceError(ErrorKind.FORBIDDEN, _explain_foreign_host("Origin", origin))


def _parse_hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _explain_foreign_host(header: str, value: str) -> str:
    return (
        f"{header} {value[:100]!r} is not allowed; add its name to the setting allowed_hosts of the service"
    )
