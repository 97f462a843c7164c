"""The way to a shop that runs elsewhere: over HTTP, on connections that are kept open.

`RemoteShop` offers what `Shop` offers. Servers remember nothing, so a call whose connection broke is sent
once more on a fresh one. What the caller did wrong stays an `InputError`; a server that is gone, slow or
no shop is an `EnvError`, which ends an episode as the system's failure.

`hosted_shop` starts a server in a process of its own, on a free port of this machine, shared by all worlds
of this process with the same options; it ends with the last of them that is closed, or with this process
(its standard input is a pipe from here). If it died, the next episode gets another.
"""

from __future__ import annotations

import atexit
import http.client
import importlib.util
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from stepwell.core import ConfigError, EnvError, InputError, StateForm
from stepwell.envs.shop.goal import Goal
from stepwell.envs.shop.options import ShopOptions
from stepwell.envs.shop.plan import Plan
from stepwell.envs.shop.score import Score
from stepwell.envs.shop.shop import Seen, open_shop
from stepwell.envs.shop.view import View

_STARTING_S = 60.0
_REFUSED = 400
_REMOTE: weakref.WeakSet[RemoteShop] = weakref.WeakSet()


class RemoteShop:
    """A shop at an address."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._about: dict[str, Any] | None = None
        _REMOTE.add(self)

    @classmethod
    def at(cls, url: str, timeout_s: float) -> RemoteShop:
        """The one of this process for an address."""
        return _remote_shop(url, timeout_s)

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteShop:
        return self

    def about(self) -> dict[str, Any]:
        """What the shop says of itself; asked once."""
        if self._about is None:
            self._about = self._call("about", {})
        return self._about

    def goal(self, seed: int) -> Goal:
        """The goal of a seed."""
        return Goal.from_json(self._call("goal", {"seed": seed})["goal"])

    def enter(self, goal: Goal) -> Seen:
        """The first page."""
        return _read_seen(self._call("enter", {"goal": goal.to_json()}))

    def step(self, goal: Goal, view: View, action: str) -> Seen:
        """The page that an action leads to."""
        return _read_seen(self._call("step", {**_place(goal, view), "action": action}))

    def plan(self, goal: Goal, view: View) -> Plan:
        """A shortest way to a full score."""
        answer = self._call("plan", _place(goal, view))
        return Plan(answer["actions"], answer["is_shortest"])

    def state(self, goal: Goal, view: View) -> dict[StateForm, str]:
        """Where the shopper stands."""
        return {StateForm(form): text for form, text in self._call("state", _place(goal, view)).items()}

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _call(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        try:
            status, answer = self._sent(name, data, self._taken())
        except (OSError, http.client.HTTPException):
            status, answer = self._sent_anew(name, data)
        try:
            told = json.loads(answer)
            if status == 200 and isinstance(told, dict):
                return told
            detail = str(told["detail"])
        except (ValueError, KeyError, TypeError) as error:
            raise EnvError(
                f"{self.url} is no Stepwell shop: it answered {status}, {answer[:80]!r}"
            ) from error
        raise InputError(detail) if status == _REFUSED else EnvError(f"{self.url}: {detail}")

    def _sent_anew(self, name: str, data: bytes) -> tuple[int, bytes]:
        try:
            return self._sent(name, data, self._connected())
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise EnvError(f"the shop at {self.url} cannot be reached: {why}") from error

    def _sent(self, name: str, data: bytes, connection: http.client.HTTPConnection) -> tuple[int, bytes]:
        try:
            connection.request("POST", f"/{name}", data, {"content-type": "application/json"})
            response = connection.getresponse()
            answer = response.status, response.read()
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return answer

    def _taken(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._pid != os.getpid():  # after a fork the connections are the parent's
                self._idle, self._pid = [], os.getpid()
            if self._idle:
                return self._idle.pop()
        return self._connected()

    def _connected(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self._timeout_s)


@lru_cache(maxsize=64)
def _remote_shop(url: str, timeout_s: float) -> RemoteShop:
    return RemoteShop(url, timeout_s)


def _place(goal: Goal, view: View) -> dict[str, Any]:
    return {"goal": goal.to_json(), "view": view.to_json()}


def _read_seen(answer: dict[str, Any]) -> Seen:
    try:
        score = None if answer["score"] is None else Score(**answer["score"])
        return Seen(View.from_json(answer["view"]), answer["text"], tuple(answer["actions"]), score)
    except (KeyError, TypeError, InputError) as error:
        raise EnvError(f"the shop's answer is no page: {error!r}") from error


@dataclass
class _Hosted:
    """A server process of ours, and the worlds that use it."""

    process: subprocess.Popen[bytes]
    shop: HostedShop
    holders: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)

    def stop(self) -> None:
        self.shop.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class HostedShop(RemoteShop):
    """A shop whose server this process has started."""

    def __init__(self, url: str, timeout_s: float, process: subprocess.Popen[bytes]) -> None:
        super().__init__(url, timeout_s)
        self.process = process

    @property
    def is_up(self) -> bool:
        """Whether the server's process is there."""
        return self.process.poll() is None


_HOSTED: dict[str, _Hosted] = {}
_HOSTED_LOCK = threading.Lock()


def hosted_shop(options: ShopOptions, holder: object) -> HostedShop:
    """The server for these options, started if there is none; `holder` uses it until it lets go."""
    with _HOSTED_LOCK:
        hosted = _HOSTED.get(_key(options))
        if hosted is not None and not hosted.shop.is_up:
            hosted.stop()
            hosted = None
        if hosted is None:
            shop = _started(options)
            hosted = _HOSTED[_key(options)] = _Hosted(shop.process, shop)
        hosted.holders.add(holder)
        return hosted.shop


def let_go(options: ShopOptions, holder: object) -> None:
    """`holder` needs the server no longer; the last one turns off the light."""
    with _HOSTED_LOCK:
        hosted = _HOSTED.get(_key(options))
        if hosted is None or holder not in hosted.holders:
            return
        hosted.holders.discard(holder)
        if not hosted.holders:
            _HOSTED.pop(_key(options)).stop()


@atexit.register
def _let_go_of_all() -> None:
    for shop in list(_REMOTE):
        shop.close()
    for key, hosted in _HOSTED.items():
        if key.startswith(f"{os.getpid()} "):  # a forked process leaves its parent's servers alone
            hosted.stop()


def _key(options: ShopOptions) -> str:
    return f"{os.getpid()} {options.model_dump_json()}"


def _started(options: ShopOptions) -> HostedShop:
    if not all(map(importlib.util.find_spec, ("fastapi", "uvicorn"))):
        raise ConfigError("transport = 'http' needs the extra 'serve': pip install 'stepwell[serve]'")
    open_shop(options)  # a catalogue that must be built is built here, where its errors are told
    command = [sys.executable, "-m", "stepwell.envs.shop.server", options.model_dump_json()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    line, until = b"", time.monotonic() + _STARTING_S
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
        part = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not part:
            process.kill()
            process.wait()
            raise EnvError(f"the shop's server did not start within {_STARTING_S:.0f} s; its log says why")
        line += part
    return HostedShop(line.decode().strip(), options.timeout_s, process)
