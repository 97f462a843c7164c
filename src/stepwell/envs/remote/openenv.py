"""An environment that OpenEnv serves, as an environment for language agents.

    env.name = "openenv:http://host:8000"

OpenEnv's servers keep one environment per WebSocket and speak JSON: `{"type": "reset" | "step", "data": …}`
in, `{"type": "observation", "data": {"observation", "reward", "done"}}` out. What an action looks like is in
the schema they publish. Here an action is one text: it fills `action_field` (or the one required text that
the schema has), or is itself the action's JSON; or one of `actions`, which names ready-made actions.

Invariants
* A task is a seed of the server's reset. Whether it determines the episode depends on the server.
* Success is a statement about the whole episode: its return has reached `success_reward` when it ends.
* A text that is no action of the schema does nothing, costs nothing and counts as a turn.
* A connection that breaks is an `EnvError`; the next reset opens another.
"""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, JsonValue

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, ConfigError, EnvDescription, EnvError, Observation, Task
from stepwell.envs.base import NOTHING, Effect, Env
from stepwell.envs.options import declare_host_option

_OWN_FIELDS = frozenset({"metadata"})


class OpenEnvOptions(Settings):
    """How an OpenEnv environment is addressed, shown and judged."""

    action_field: str | None = Field(
        None, description="field of an action that takes the agent's text; None: the one that the schema has"
    )
    actions: dict[str, dict[str, JsonValue]] = Field(
        default_factory=dict, description="ready-made actions by name; the agent then writes a name"
    )
    text_field: str | None = Field(None, description="field of an observation that is shown; None: all, JSON")
    guide: str | None = Field(None, description="the guide for the agent; None: the server's description")
    max_turns: int = Field(
        20, ge=1, le=1_000_000, description="turns of an episode; reaching them is a failure"
    )
    reset: dict[str, JsonValue] = declare_host_option({}, description="further arguments of reset")
    success_reward: float | None = Field(
        None, description="return that counts as success; None: any return above 0"
    )
    timeout_s: float = Field(60.0, gt=0, description="how long an answer may take")


@lru_cache(maxsize=64)
def make_openenv_type(url: str) -> type[Env]:
    """The environment class of one server."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"env 'openenv:{url}': write openenv:http://HOST:PORT")
    base = url.rstrip("/")
    schema = _get_json(f"{base}/schema")
    described = _get_json(f"{base}/metadata")
    about = str(described.get("description") or described.get("name") or base)
    members = {"name": f"openenv:{base}", "url": base, "schema": schema, "about": about}
    return type("OpenEnv", (OpenEnv,), members | {"__doc__": f"OpenEnv's environment at {base}."})


class OpenEnv(Env):
    """An environment behind OpenEnv's protocol; `make_openenv_type` makes the class of a server."""

    Options: ClassVar[type[Settings]] = OpenEnvOptions
    has_oracle: ClassVar[bool] = False
    waits: ClassVar[bool] = True
    url: ClassVar[str]
    schema: ClassVar[dict[str, Any]]
    about: ClassVar[str]
    options: OpenEnvOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._socket: Any = None
        self._opened = contextlib.ExitStack()
        self._seen: dict[str, Any] = {}
        self._return = 0.0
        self._field = self.options.action_field or self._find_text_field()

    @cached_property
    def description(self) -> EnvDescription:
        """The server's own description, and the form of an action."""
        names = tuple(self.options.actions)
        guide = self.options.guide or self.about
        if not names and self._field is None:
            guide += f"\nAn action is a JSON object of this schema:\n{json.dumps(self._list_action_fields())}"
        return EnvDescription(self.name, guide, ActionSpace(names), self.options.max_turns)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A seed of the server's reset."""
        return Task(cls.name, {"seed": seed, "reset": options.reset}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """A reset with the task's seed."""
        content: dict[str, Any] = task.content
        self._return = 0.0
        data = {**content.get("reset", {}), "seed": content["seed"]}
        try:
            self._take_answer(self._ask_server({"type": "reset", "data": data}))
        except EnvError:  # the connection may be an old one, or broken in the episode before
            self.close()
            self._take_answer(self._ask_server({"type": "reset", "data": data}))

    def act(self, action: str) -> Effect:
        """One step of the environment."""
        data = self._make_action(action)
        if data is None:
            return NOTHING
        answer = self._ask_server({"type": "step", "data": data}, may_refuse=True)
        if answer is None:
            return NOTHING
        reward, done = self._take_answer(answer)
        self._return += reward
        return Effect(reward, done)

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """One turn; success is known when the episode is over."""
        observation, reward, terminated, truncated, info = super().step(actions)
        wanted = self.options.success_reward
        reached = self._return > 0 if wanted is None else self._return >= wanted
        info["success"] = terminated and reached
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        """One field of what the server showed, or all of it as JSON."""
        name = self.options.text_field
        if name is None:
            return Observation(json.dumps(self._seen))
        if name not in self._seen:
            known = ", ".join(self._seen)
            raise ConfigError(f"env.options.text_field: {name!r} is not shown; there are {known}")
        value = self._seen[name]
        return Observation(value if isinstance(value, str) else json.dumps(value))

    def oracle(self) -> list[str]:
        """Always []: no solver is known for a foreign environment."""
        return []

    def close(self) -> None:
        """Close the connection, and with it the server's session."""
        self._socket = None
        with contextlib.suppress(OSError):
            self._opened.close()

    def __del__(self) -> None:
        if getattr(self, "_socket", None) is not None:
            self.close()  # an unused session would keep a place on the server

    def _list_action_fields(self) -> dict[str, Any]:
        fields = self.schema.get("action", {}).get("properties", {})
        return {name: field for name, field in fields.items() if name not in _OWN_FIELDS}

    def _find_text_field(self) -> str | None:
        """The one field that is needed, where it is a text."""
        fields = self._list_action_fields()
        needed = [name for name in self.schema.get("action", {}).get("required", []) if name in fields]
        is_text = len(needed) == 1 and fields[needed[0]].get("type") == "string"
        return needed[0] if is_text else None

    def _make_action(self, text: str) -> dict[str, Any] | None:
        if self.options.actions:
            return dict(self.options.actions[text])
        if self._field is not None:
            return {self._field: text}
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def _take_answer(self, answer: Any) -> tuple[float, bool]:
        try:
            data = answer["data"]
            self._seen = dict(data["observation"])
            return float(data["reward"] or 0.0), bool(data["done"])
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(
                f"{self.name} answered with something that is not an observation: {error!r}"
            ) from error

    def _ask_server(self, message: dict[str, Any], *, may_refuse: bool = False) -> Any:
        """The server's answer; None where it may refuse an action and does."""
        try:
            if self._socket is None:
                self._socket = self._opened.enter_context(_open_socket(self.url, self.options.timeout_s))
            self._socket.send(json.dumps(message))
            answer = json.loads(self._socket.recv(timeout=self.options.timeout_s))
        except (OSError, ValueError, _import_websocket_error()) as error:
            self.close()
            raise EnvError(f"{self.name} cannot be reached: {error or type(error).__name__}") from error
        if isinstance(answer, dict) and answer.get("type") == "error":
            reply_data = answer.get("data", {})
            if may_refuse and reply_data.get("code") == "VALIDATION_ERROR":
                return None
            raise EnvError(f"{self.name} refused {message['type']}: {reply_data.get('message')}")
        return answer


def _open_socket(url: str, timeout_s: float) -> Any:
    _import_websocket_error()
    from websockets.sync.client import connect

    return connect(f"ws{url.removeprefix('http')}/ws", open_timeout=timeout_s, max_size=None, proxy=None)


def _import_websocket_error() -> type[Exception]:
    """What a broken WebSocket raises."""
    try:
        from websockets.exceptions import WebSocketException
    except ImportError as error:
        raise ConfigError("OpenEnv's servers need the package websockets: pip install websockets") from error
    found: type[Exception] = WebSocketException
    return found


def _get_json(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10.0) as response:
            value = json.loads(response.read())
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise EnvError(f"no OpenEnv server answers at {url}: {error}") from error
    if not isinstance(value, dict):
        raise EnvError(f"the reply of {url} does not have OpenEnv's format")
    return value
