"""Connections to the servers of an environment: retries, failover and heartbeats.

`Server` exchanges frames with one server (`connections.py` has the ways). `Servers` are several that host the
same environment. The key is read from `STEPWELL_ENV_KEY`, never from a URL.

Invariants
* Only calls that are safe to repeat are sent again after a broken connection. Turns are numbered; requesting
  the same number again returns the lost answer.
* Errors of the caller keep their type (`InputError`, `ConfigError`). A server that is unreachable or full, or
  that has forgotten the session, is an `EnvError`.
* A server that was unreachable or frozen is tried last for `retry_after_s`; if no other is left, it is tried
  anyway. Its sessions fail at once in the meantime.
* Every wait is bounded. An answer may take `timeout_s` (`STEPWELL_ENV_TIMEOUT_S`, 180) as long as the server
  is alive: after `silent_s` without data, the client requests `/health`, and gives up if that is not answered
  either.
* A new session goes to the server with the fewest sessions; among equals, to a random one.
* Open sessions get a heartbeat three times per session timeout. A session whose holder was dropped without
  closing it gets none, and is closed when the next one is created.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stepwell.core import ConfigError, EncodingError, EnvError, InputError
from stepwell.core.api_keys import read_key
from stepwell.core.arrays import AnyArray
from stepwell.envs.remote import wire
from stepwell.envs.remote.connections import (
    KEY_VARIABLE,
    Connection,
    FrameStream,
    HttpCalls,
    WebSocketFrames,
)
from stepwell.envs.remote.wire import Frame

TIMEOUT_VARIABLE = "STEPWELL_ENV_TIMEOUT_S"
_TIMEOUT_S, _SILENT_S = 180.0, 10.0
_RETRY_AFTER_S = 5.0
GONE = 404
T = TypeVar("T")
_MINE: dict[str, type[Exception]] = {
    "InputError": InputError,
    "ConfigError": ConfigError,
    "EncodingError": EncodingError,
}


class EnvServerLostError(EnvError):
    """The server cannot be reached, or the connection broke before the answer."""


class EnvServerFrozenError(EnvServerLostError):
    """The server accepts connections but does not answer."""


class SessionLostError(EnvError):
    """The server does not know the session, or has forgotten it."""


class Server:
    """One server."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        connect_timeout_s: float = 5.0,
        timeout_s: float | None = None,
        silent_s: float = _SILENT_S,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
            raise ConfigError(
                f"{url!r} is not the address of a server; write http://HOST:PORT or ws://HOST:PORT"
            )
        self.url = url.rstrip("/")
        self._key = read_key(KEY_VARIABLE) if key is None else key
        self._timeout_s = _read_timeout() if timeout_s is None else timeout_s
        self._silent_s = min(silent_s, self._timeout_s)
        self._connect_timeout_s = min(connect_timeout_s, self._timeout_s)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._held: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._known: set[str] = set()  # sessions that were created and not closed
        self._beat_s = 0.0
        self._beating: threading.Thread | None = None
        self.down_until_s = 0.0
        self._is_frozen = False
        self._has_frames = True  # until it refuses
        self.num_sent = self.num_received = 0  # bytes of frames

    def call(
        self, op: str, header: dict[str, Any], arrays: Sequence[AnyArray] = (), *, tries: int = 2
    ) -> Frame:
        """The server's answer. A broken connection is retried, up to `tries` attempts in total."""
        return self.send_frame(wire.to_bytes(Frame(op, header, arrays)), tries)

    def send_frame(self, body: bytes, tries: int = 2) -> Frame:
        """As `call`, with the bytes of the frame."""
        if self._is_frozen:
            if time.monotonic() < self.down_until_s:
                raise EnvServerFrozenError(
                    f"the env server at {self.url} does not answer; the next request to it waits a while"
                )
            self._is_frozen = False
        for attempt in range(tries):
            try:
                status, answer, is_frame = self._send(body, fresh=attempt > 0)
                break
            except EnvServerFrozenError:
                self._is_frozen, self.down_until_s = True, time.monotonic() + _RETRY_AFTER_S
                raise
            except (OSError, http.client.HTTPException) as error:
                if attempt + 1 == tries:
                    why = str(error) or type(error).__name__
                    raise EnvServerLostError(
                        f"the env server at {self.url} cannot be reached: {why}"
                    ) from error
        self.num_sent += len(body)
        self.num_received += len(answer)
        if status != 200:
            raise self._make_refusal(status, answer)
        try:
            if not is_frame:
                raise EncodingError("its answer is not a frame")
            frame = wire.decode(answer)
            if frame.arrays and wire.PNGS in frame.header:
                frame = wire.decode_images(frame)
        except EncodingError as error:
            raise EnvError(f"{self.url} is not a Stepwell environment server: {error}") from error
        if frame.op == "error":  # a WebSocket's counterpart of an HTTP error status
            raise self._make_refusal(int(frame.header.get("status", 500)), json.dumps(frame.header).encode())
        return frame

    def try_anew(self) -> None:
        """Try the server again, whatever happened before."""
        self._is_frozen = False

    def count_sessions(self) -> int:
        """Number of sessions on the server, of all callers."""
        return int(self.call("load", {}, tries=1).header["num_sessions"])

    def _wait_for_answer(self, is_there: Callable[[float], bool]) -> None:
        """Wait for an answer while the server is alive, at most `timeout_s`."""
        wait_s = self._silent_s  # most answers are there before a clock is read
        until = math.inf
        while not is_there(wait_s):
            now = time.monotonic()
            until = min(until, now + self._timeout_s - wait_s)
            if now >= until:
                words = f"took longer than {self._timeout_s:g} s ({TIMEOUT_VARIABLE})"
                raise EnvServerFrozenError(f"the env server at {self.url} {words}")
            if not self._is_alive():
                raise EnvServerFrozenError(
                    f"the env server at {self.url} has frozen: not even /health answers"
                )
            wait_s = max(0.001, min(self._silent_s, until - time.monotonic()))

    def _is_alive(self) -> bool:
        parts = urlsplit(self.url)
        is_safe = parts.scheme in ("https", "wss")
        kind = http.client.HTTPSConnection if is_safe else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._connect_timeout_s)
        try:
            connection.request("GET", f"{parts.path}/health")
            return connection.getresponse().status < 500
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def keep_alive(self, session: str, session_timeout_s: float, holder: object) -> None:
        """Keep a session alive from now on, as long as its holder exists."""
        with self._lock:
            self._held[session] = holder
            abandoned = [name for name in self._known if name not in self._held]
            self._known = (self._known | {session}) - set(abandoned)
            self._beat_s = session_timeout_s / 3
            if self._beating is None:
                self._beating = threading.Thread(
                    target=self._send_heartbeats, name=f"heartbeat of {self.url}", daemon=True
                )
                self._beating.start()
        for name in abandoned:  # copies of environments are dropped without closing them, one per turn
            with contextlib.suppress(EnvError):
                self.call("close", {"sessions": [name]}, tries=1)

    def forget_session(self, session: str) -> None:
        """Stop keeping a session alive."""
        with self._lock:
            self._held.pop(session, None)
            self._known.discard(session)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._held.clear()
            self._known.clear()
        for connection in idle:
            connection.close()

    def _send(self, body: bytes, *, fresh: bool) -> tuple[int, bytes, bool]:
        """Send a frame on a connection that no other call uses, or on a fresh one."""
        try:
            connection = None if fresh else self._idle.pop()  # threads: one gets it, the other an IndexError
        except IndexError:
            connection = None
        if connection is None:
            connection = self._open_connection()
        try:
            answered = connection.send(body, self._wait_for_answer)
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answered

    def _open_connection(self) -> Connection:
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        if urlsplit(self.url).scheme in ("ws", "wss"):
            return WebSocketFrames(self.url, headers, self._connect_timeout_s)
        if self._has_frames:
            stream = FrameStream.open(self.url, headers, self._connect_timeout_s, self._timeout_s)
            if stream is not None:
                return stream
            self._has_frames = False
        return HttpCalls(self.url, headers, self._connect_timeout_s, self._timeout_s)

    def _make_refusal(self, status: int, body: bytes) -> Exception:
        try:
            parsed = json.loads(body)
            detail, kind = str(parsed["detail"]), str(parsed.get("kind", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            detail, kind = body[:200].decode(errors="replace"), ""
        words = f"{self.url}: {detail}"
        if status == 401:
            return ConfigError(f"{words} (the key is read from {KEY_VARIABLE})")
        if status == 403:
            return ConfigError(words)
        if status == GONE and "session" in detail:
            return SessionLostError(words)
        if status == GONE:
            return ConfigError(words)
        return _MINE[kind](detail) if kind in _MINE else EnvError(words)

    def _send_heartbeats(self) -> None:
        while True:
            time.sleep(max(0.05, self._beat_s))
            for name in list(self._held):
                try:
                    self.call("heartbeat", {"sessions": [name]}, tries=1)
                except SessionLostError:
                    self.forget_session(name)
                except EnvError:
                    break  # the session's user will notice


class Servers:
    """Several servers that host the same environment."""

    def __init__(
        self, urls: Sequence[str], *, retry_after_s: float = _RETRY_AFTER_S, **connection: Any
    ) -> None:
        if not urls:
            raise ConfigError("name at least one env server: remote:http://HOST:PORT#NAME")
        self.all = [Server(url, **connection) for url in urls]
        self._retry_after_s = retry_after_s
        self._turn = itertools.count()
        self._choosing = threading.Lock()  # environments that open at once would all see the same counts
        self._chance = random.SystemRandom()  # does not change the run's own random state

    def try_any(self, do: Callable[[Server], T]) -> tuple[Server, T]:
        """Run `do` with one server, the next in turn; if it is unreachable, with another."""
        start = next(self._turn)
        order = [self.all[(start + i) % len(self.all)] for i in range(len(self.all))]
        return self._try_in_order(order, do)

    def try_least_busy(self, do: Callable[[Server], T]) -> tuple[Server, T]:
        """Run `do` with the server that has the fewest sessions; if it is unreachable, with another."""
        order = self._chance.sample(self.all, len(self.all))
        if len(order) == 1:
            return self._try_in_order(order, do)
        with self._choosing:
            loads = {server.url: self._measure_load(server) for server in order}
            order.sort(key=lambda server: loads[server.url])
            return self._try_in_order(order, do)

    def _measure_load(self, server: Server) -> float:
        if server.down_until_s > time.monotonic():
            return math.inf
        try:
            return server.count_sessions()
        except (EnvError, ConfigError):  # the session's user will notice
            server.down_until_s = max(server.down_until_s, time.monotonic() + self._retry_after_s)
            return math.inf

    def _try_in_order(self, order: Sequence[Server], do: Callable[[Server], T]) -> tuple[Server, T]:
        now = time.monotonic()
        problem: Exception | None = None
        for server in sorted(order, key=lambda server: server.down_until_s > now):
            try:
                server.try_anew()
                return server, do(server)
            except (InputError, ConfigError, EncodingError):
                raise
            except EnvError as error:
                server.down_until_s = time.monotonic() + self._retry_after_s
                problem = error
        raise EnvError(f"none of {len(self.all)} env servers serves: {problem}") from problem


def _read_timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        found = float(text) if text else _TIMEOUT_S
    except ValueError:
        found = 0.0
    if found <= 0:
        raise ConfigError(f"{TIMEOUT_VARIABLE} must be a number of seconds above 0, got {text!r}")
    return found
