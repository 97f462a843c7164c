"""The way to a shop that runs elsewhere: over HTTP, on connections that are kept open.

`RemoteShop` offers what `Shop` offers. Servers remember nothing, so a call whose connection broke is sent
once more on a fresh one. What the caller did wrong stays an `InputError`; a server that is gone, slow or
no shop is an `EnvError`, which ends an episode as the system's failure.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import threading
import weakref
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from stepwell.core import EnvError, InputError, StateForm
from stepwell.envs.shop.goal import Goal
from stepwell.envs.shop.plan import Plan
from stepwell.envs.shop.score import Score
from stepwell.envs.shop.shop import Seen
from stepwell.envs.shop.view import View

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


@atexit.register
def _close_all() -> None:
    for shop in list(_REMOTE):
        shop.close()
