"""The light driver's way to a site: a call in this process, or HTTP by a socket.

A `DirectSite`, as our own sites are, answers a plain call. Other ASGI applications run in a loop.

One `SiteClient` belongs to one episode: it keeps its cookies and sends its headers with every request. It
follows redirects, at most `MAX_REDIRECTS`, and asks before each whether the address is allowed.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from stepwell.envs.web.addresses import AllowedHosts, resolve_address
from stepwell.envs.web.exchange import DirectSite, SiteRequest

MAX_REDIRECTS = 20
MAX_BYTES = 32 * 2**20
AGENT = "Mozilla/5.0 (compatible; Stepwell)"


def lead_to_loopback(url: str) -> tuple[str, dict[str, str]]:
    """Where a URL is contacted, and further headers: names under `.localhost` are this machine.

    >>> lead_to_loopback("http://shop.localhost:81/cart")
    ('http://127.0.0.1:81/cart', {'host': 'shop.localhost:81'})
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not (parts.hostname or "").endswith(".localhost"):
        return url, {}
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=f"127.0.0.1{port}").geturl(), {"host": f"{parts.hostname}{port}"}


class SiteUnreachableError(Exception):
    """A site does not answer, or leads somewhere it must not; the words are for the agent."""


@dataclass(slots=True)
class SiteReply:
    """A site's answer after all redirects."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    is_posted: bool = False  # it answers a form, not an address: it cannot be asked for again

    def find_download(self) -> str:
        """The name of a file that a browser would save; "" for a page."""
        disposition = self.headers.get("content-disposition", "")
        kind = self.headers.get("content-type", "text/html").partition(";")[0].strip().lower()
        shown = kind.startswith("text/") or kind in (
            "application/xhtml+xml",
            "application/json",
            "application/xml",
        )
        if shown and not disposition.lower().startswith("attachment"):
            return ""
        named = re.search(r'filename="?([^";]+)', disposition)
        return named.group(1) if named else self.url.partition("?")[0].rpartition("/")[2] or "a file"

    def read_text(self) -> str:
        """The body as text, in the character set that the headers name."""
        _, _, named = self.headers.get("content-type", "").partition("charset=")
        try:
            return self.body.decode(named.split(";")[0].strip(" \"'") or "utf-8", "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


@dataclass(slots=True)
class Cookie:
    """One cookie; `is_host_only`: it goes to the very host that set it."""

    name: str
    value: str
    host: str
    path: str
    is_host_only: bool

    def match_address(self, host: str, path: str) -> bool:
        """Whether it goes with a request."""
        at_host = host == self.host or (not self.is_host_only and host.endswith("." + self.host))
        return at_host and (path == self.path or path.startswith(self.path.rstrip("/") + "/"))


@dataclass(slots=True)
class SiteClient:
    """Requests of one episode."""

    headers: Mapping[str, str]
    allowed: AllowedHosts
    app: Any = None
    timeout_s: float = 10.0
    cookies: dict[tuple[str, str, str], Cookie] = field(default_factory=dict)
    _loop: Any = None
    _http: Any = None

    def request_page(
        self, method: str, url: str, body: bytes = b"", content_type: str = "", referer: str = ""
    ) -> SiteReply:
        """Ask for a page and follow its redirects; `SiteUnreachableError` says why there is none."""
        for _ in range(MAX_REDIRECTS + 1):
            if not self.allowed.allow_address(url):
                raise SiteUnreachableError(f"the address {url[:200]} is not allowed here")
            reply = self._send_request(method, url, body, content_type, referer)
            self._keep_cookies(url, reply)
            target = reply.headers.get("location")
            if reply.status not in (301, 302, 303, 307, 308) or not target:
                reply.is_posted = method == "POST"
                return reply
            fragment = urlsplit(url).fragment
            url = resolve_address(urljoin(url, target), url)
            if fragment and url and "#" not in url:
                url += f"#{fragment}"
            if reply.status in (301, 302, 303) and method != "HEAD":
                method, body, content_type = "GET", b"", ""
        raise SiteUnreachableError("the site redirects without end")

    def load_storage_state(self, state: Any) -> None:
        """Take over the cookies of a saved browser state (Playwright's form)."""
        for item in (state or {}).get("cookies", ()):
            domain = item.get("domain", "")
            cookie = Cookie(
                item["name"], item["value"], domain.lstrip("."), item.get("path", "/"), domain[:1] != "."
            )
            self.cookies[cookie.host, cookie.path, cookie.name] = cookie

    def close(self) -> None:
        """Release the socket and the loop."""
        if self._http is not None:
            self._http.close()
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()
        self._http = self._loop = None

    def _send_request(self, method: str, url: str, body: bytes, content_type: str, referer: str) -> SiteReply:
        headers = {"user-agent": AGENT, "accept": "text/html,*/*", "accept-language": "en"}
        headers |= {name.lower(): value for name, value in self.headers.items()}
        if cookie := self._write_cookies(url):
            headers["cookie"] = cookie
        if content_type:
            headers["content-type"] = content_type
            parts = urlsplit(referer or url)
            headers["origin"] = f"{parts.scheme}://{parts.netloc}"
        if referer:
            headers["referer"] = referer.partition("#")[0]
        if isinstance(self.app, DirectSite):
            return _call_site(self.app, method, url, headers, body)
        if self.app is not None:
            return self._call_app(method, url, headers, body)
        return self._call_host(method, url, headers, body)

    def _call_app(self, method: str, url: str, headers: dict[str, str], body: bytes) -> SiteReply:
        parts = urlsplit(url)
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
        raw.append((b"host", parts.netloc.encode()))
        if method == "POST":
            raw.append((b"content-length", str(len(body)).encode()))
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": parts.scheme,
            "path": unquote(parts.path or "/"),
            "raw_path": (parts.path or "/").encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": raw,
            "client": ("127.0.0.1", 0),
            "server": (parts.hostname, parts.port or 80),
        }
        call = AppCall(body)
        try:
            self._run(lambda: call.run(self.app, scope))
        except Exception as error:
            if call.status == 0:
                raise SiteUnreachableError(f"the site failed: {type(error).__name__}") from error
        names = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in call.headers}
        cookies = [value.decode("latin-1") for name, value in call.headers if name.lower() == b"set-cookie"]
        if cookies:
            names["set-cookie"] = "\n".join(cookies)
        return SiteReply(url, call.status, names, b"".join(call.body))

    def _run(self, make: Callable[[], Any]) -> None:
        """Run a coroutine to its end, also where a loop already runs in this thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if asyncio._get_running_loop() is None:
            self._loop.run_until_complete(make())
            return
        errors: list[BaseException] = []
        thread = threading.Thread(target=_run_in_thread, args=(self._loop, make, errors))
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def _call_host(self, method: str, url: str, headers: dict[str, str], body: bytes) -> SiteReply:
        import httpx

        if self._http is None:
            self._http = httpx.Client(trust_env=False, timeout=self.timeout_s)
        deadline = time.monotonic() + self.timeout_s
        received, size = [], 0
        try:
            address, more = lead_to_loopback(url)
            with self._http.stream(method, address, headers={**headers, **more}, content=body) as reply:
                self._http.cookies.clear()  # ours are kept here
                for chunk in reply.iter_bytes():
                    received.append(chunk)
                    size += len(chunk)
                    if size > MAX_BYTES:
                        break
                    if time.monotonic() > deadline:
                        raise SiteUnreachableError(f"the page did not load in {self.timeout_s:g} seconds")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            if isinstance(error, httpx.TimeoutException):
                raise SiteUnreachableError(f"the page did not load in {self.timeout_s:g} seconds") from error
            raise SiteUnreachableError(f"the site cannot be reached: {type(error).__name__}") from error
        names = dict(reply.headers)
        names["set-cookie"] = "\n".join(reply.headers.get_list("set-cookie"))
        return SiteReply(url, reply.status_code, names, b"".join(received))

    def _write_cookies(self, url: str) -> str:
        if not self.cookies:
            return ""
        parts = urlsplit(url)
        host, path = (parts.hostname or ""), parts.path or "/"
        found = [cookie for cookie in self.cookies.values() if cookie.match_address(host, path)]
        found.sort(key=lambda cookie: -len(cookie.path))
        return "; ".join(f"{cookie.name}={cookie.value}" for cookie in found)

    def _keep_cookies(self, url: str, reply: SiteReply) -> None:
        if not (raw := reply.headers.get("set-cookie")):
            return
        parts = urlsplit(url)
        host = parts.hostname or ""
        for line in raw.split("\n"):
            for cookie, is_gone in _read_cookies(line, host, parts.path):
                key = (cookie.host, cookie.path, cookie.name)
                if is_gone:
                    self.cookies.pop(key, None)
                elif cookie.match_address(host, cookie.path):
                    self.cookies[key] = cookie


class AppCall:
    """One request to an ASGI application: receives its answer."""

    def __init__(self, body: bytes) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        self._request: list[bytes] = [body]
        self._size = 0

    async def run(self, app: Any, scope: dict[str, Any]) -> None:
        """Call the application."""
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._request:
            return {"type": "http.request", "body": self._request.pop(), "more_body": False}
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body" and self._size <= MAX_BYTES:
            self.body.append(message.get("body", b""))
            self._size += len(self.body[-1])


def _call_site(site: DirectSite, method: str, url: str, headers: Mapping[str, str], body: bytes) -> SiteReply:
    parts = urlsplit(url)
    request = SiteRequest(method, parts.netloc, unquote(parts.path or "/"), parts.query, body)
    answer = site.answer_request(request, headers)
    return SiteReply(url, answer.status, answer.headers, answer.body)


def _run_in_thread(loop: Any, make: Callable[[], Any], errors: list[BaseException]) -> None:
    try:
        loop.run_until_complete(make())
    except BaseException as error:
        errors.append(error)


def _read_cookies(line: str, host: str, path: str) -> list[tuple[Cookie, bool]]:
    """The cookies of one header, each with whether it is to be forgotten."""
    try:
        jar = SimpleCookie(line)
    except CookieError:
        return []
    found = []
    for morsel in jar.values():
        domain = morsel["domain"].lstrip(".").lower()
        own_path = morsel["path"] or path.rpartition("/")[0] or "/"
        cookie = Cookie(morsel.key, morsel.coded_value, domain or host, own_path, not domain)
        found.append((cookie, _is_over(morsel["max-age"], morsel["expires"])))
    return found


def _is_over(max_age: str, expires: str) -> bool:
    if max_age:
        return max_age.lstrip("-").isdigit() and int(max_age) <= 0
    try:
        return bool(expires) and parsedate_to_datetime(expires).timestamp() <= time.time()
    except (TypeError, ValueError):
        return False
