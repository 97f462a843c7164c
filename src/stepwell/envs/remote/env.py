"""An environment on a server, with the interface of a local one.

    env.name = "remote:http://one:8090,http://two:8090#frozenlake"

Its tasks, observations, rewards and errors equal those of the environment on the server, bit for bit. The
tasks' `env` is the name of that environment, so local and remote records are comparable. The server checks
the options.

Invariants
* An episode stays on one server. If that server dies, hangs or forgets the session, the turn raises
  `EnvError` and the next `reset` opens a session on another one.
* A reset is tried on every server before it fails.
* After the first `state()`, every turn includes the true state, so reading it needs no further call.
* There is no `table()`: tables of states are not transferred.
* It waits: copies in a batch have calls under way at once, each on a connection of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
    ArrayState,
    ConfigError,
    EncodingError,
    EnvDescription,
    EnvError,
    InputError,
    Observation,
    RobotEnvDescription,
    StateForm,
    Task,
)
from stepwell.envs.base import NOTHING, Effect, Env, choose_task
from stepwell.envs.remote import wire
from stepwell.envs.remote.servers import Server, Servers
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotEnv
from stepwell.envs.tiles import Image

IMAGES = "raw"  # the requested format; "png" may suit a slow network


class RemoteOptions(Settings):
    """Whatever the environment on the server takes; the server checks it."""

    model_config = ConfigDict(extra="allow", frozen=True)


@lru_cache(maxsize=64)
def make_remote_type(place: str) -> type[Env] | type[RobotEnv]:
    """The class of `URL[,URL…]#NAME`. Queries a server for the kind of environment."""
    urls, separator, name = place.partition("#")
    if not separator or not name or not urls:
        raise ConfigError(
            f"env 'remote:{place}': write remote:URL[,URL...]#NAME, such as "
            "remote:http://127.0.0.1:8090#frozenlake"
        )
    servers = Servers([url.strip() for url in urls.split(",")])
    _, frame = servers.try_any(lambda server: server.call("describe", {"env": name, "options": {}}))
    facts = frame.header
    members = {
        "name": facts["name"],
        "hosted": name,
        "servers": servers,
        "has_oracle": facts["has_oracle"],
        "has_process": facts["has_process"],
        "__doc__": facts["summary"],
    }
    kind: type = RemoteRobotEnv if facts["is_robot"] else RemoteEnv
    return type(kind.__name__, (kind,), members)


class RemoteSession:
    """One session at a time, on any server with room."""

    def __init__(self, servers: Servers, hosted: str, options: Settings) -> None:
        self._servers, self._hosted = servers, hosted
        self._options = options.model_dump(mode="json")
        self._server: Server | None = None
        self._id = ""
        self._takes_turns = False  # whether the server knows the operation `turn`
        self._num_turns = 0
        self._state: dict[str, str] | None = None
        self._wants_state = False
        self._began: tuple[Task | None, int | None] = (None, None)
        self._done: list[Any] = []  # the turns since, so that a copy can replay them
        self.turn: Any = None

    def describe(self) -> dict[str, Any]:
        """The environment under these options."""
        header = {"env": self._hosted, "options": self._options}
        return self._servers.try_any(lambda server: server.call("describe", header))[1].header

    def reset(self, task: Task | None, seed: int | None) -> Any:
        """The first turn, on this server or on another one."""
        header: dict[str, Any] = {} if task is None else wire.pack_tasks([task])
        if seed is not None:
            header["seeds"] = [seed]
        self._num_turns = 0
        self._began, self._done = (task, seed), []
        if self._server is not None:
            try:
                return self._read_turn(self._call_server("reset", header))
            except (InputError, ConfigError):
                raise
            except EnvError:
                self.close_session()
        self._server, frame = self._servers.try_least_busy(lambda server: self._enter_server(server, header))
        return self._read_turn(frame)

    def step(self, actions: Any) -> Any:
        """One turn."""
        try:
            turn = self._read_turn(self._play_turn(actions))
        except EnvError:
            self.close_session()
            raise
        self._num_turns += 1
        self._done.append(actions)
        return turn

    def _play_turn(self, actions: Any) -> wire.Frame:
        number, server = self._num_turns + 1, self._server
        if self._takes_turns and server is not None and isinstance(actions, tuple) and IMAGES == "raw":
            return server.send_frame(wire.write_turn_call(self._id, number, actions, self._wants_state))
        header, arrays = wire.pack_actions([actions])
        return self._call_server("step", {**header, "turns": [number]}, arrays)

    def copy(self) -> RemoteSession:
        """A separate session in the same state, reached by the same turns."""
        other = RemoteSession(self._servers, self._hosted, RemoteOptions(**self._options))
        if self.turn is not None:
            other.reset(*self._began)
            for actions in self._done:
                other.step(actions)
        return other

    def state(self) -> dict[StateForm, str]:
        """The true state that came with the turn."""
        self._wants_state = True
        if self._state is None:
            self._state = self._call_server("state", {}).header["states"][0]
        return {StateForm(form): text for form, text in self._state.items()}

    def oracle(self) -> Any:
        """The action of the environment's oracle."""
        frame = self._call_server("oracle", {})
        return wire.unpack_actions(frame.header, frame.arrays)[0]

    def render(self) -> Image:
        """The environment's image."""
        image: Image = self._call_server("render", {}).arrays[0]
        return image

    def close_session(self) -> None:
        """Close the session if possible."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.forget_session(self._id)
        try:
            server.call("close", {"sessions": [self._id]}, tries=1)
        except (EnvError, ConfigError):
            return  # the session has ended, or will expire

    def _enter_server(self, server: Server, header: dict[str, Any]) -> wire.Frame:
        """Open a session on a server, with its first turn."""
        created = server.call("create", {"env": self._hosted, "options": self._options}).header
        self._id, self._takes_turns = created["sessions"][0], created.get("takes_turns") is True
        server.keep_alive(self._id, created["session_timeout_s"], self)
        try:
            return self._call_server("reset", header, server=server)
        except EnvError:
            server.forget_session(self._id)
            raise

    def _call_server(
        self, op: str, header: dict[str, Any], arrays: Sequence[Any] = (), server: Server | None = None
    ) -> wire.Frame:
        server = server or self._server
        if server is None:
            raise EnvError(f"{self._hosted} has no session on any server; call reset first")
        more = {**header, "sessions": [self._id], "plain": True}
        if IMAGES != "raw":
            more["images"] = IMAGES
        if self._wants_state:
            more["with_state"] = True
        return server.call(op, more, arrays)

    def _read_turn(self, frame: wire.Frame) -> Any:
        try:
            if frame.op == "turn":
                turn = wire.unpack_plain_turn(frame.header)
            else:
                (turn,) = wire.unpack_turns(frame.header, frame.arrays)
        except (EncodingError, ValueError) as error:
            raise EnvError(f"the server's answer is not a turn of {self._hosted}: {error}") from error
        if turn.error is not None:
            raise turn.error
        self._state = turn.state or None
        self.turn = turn
        return turn


def _copy_env(env: Any) -> Any:
    """A copy of an environment on a server, in the same state."""
    other = type(env)(env.options)
    other._visit, other._task = env._visit.copy(), env._task
    return other


def _make_remote_task(servers: Servers, hosted: str, options: Any, seed: int) -> Task:
    header = {"env": hosted, "options": options.model_dump(mode="json"), "seeds": [seed]}
    _, frame = servers.try_any(lambda server: server.call("tasks", header))
    return wire.unpack_tasks(frame.header)[0]


class RemoteEnv(Env):
    """A text environment on a server; `make_remote_type` makes the class of an address."""

    Options: ClassVar[type[Settings]] = RemoteOptions
    waits: ClassVar[bool] = True
    hosted: ClassVar[str]
    servers: ClassVar[Servers]

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._visit = RemoteSession(self.servers, self.hosted, self.options)
        self._told = self._visit.describe()
        self.options = RemoteOptions(**self._told["options"])

    @property
    def description(self) -> EnvDescription:
        """The server's description."""
        description = wire.read_description(self._told.get("description") or self._told["world"])
        assert isinstance(description, EnvDescription)
        return description

    @property
    def is_deterministic(self) -> bool:
        """As the server reports."""
        return bool(self._told["is_deterministic"])

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The task of the seed, from the server's environment."""
        return _make_remote_task(cls.servers, cls.hosted, options, seed)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, JSON]]:
        """Start an episode on a server."""
        task = choose_task(self, seed, options)
        self._task = None
        turn = self._visit.reset(task, seed)
        self._task = task
        return turn.observation, turn.info

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """Play one turn on the server."""
        if isinstance(actions, str):
            raise InputError(f"a turn takes a list of actions, got {actions!r}")
        if self._task is None:
            raise InputError(f"{self.name} has no task yet; call reset first")
        turn = self._visit.step(tuple(actions))
        return turn.observation, turn.reward, turn.terminated, turn.truncated, turn.info

    def begin(self, task: Task, seed: int) -> None:
        """Done by the server."""
        self._visit.reset(task, seed)

    def act(self, action: str) -> Effect:
        """Play one action as its own turn; the server counts turns, so use `step` instead."""
        turn = self._visit.step((action,))
        success = bool(turn.info.get("success", False))
        return NOTHING._replace(reward=turn.reward, terminated=turn.terminated, success=success)

    def observe(self) -> Observation:
        """The last observation."""
        _ = self.task
        seen: Observation = self._visit.turn.observation
        return seen

    def oracle(self) -> list[str]:
        """The server's."""
        return list(self._visit.oracle())

    def state(self) -> dict[StateForm, str]:
        """The server's."""
        return self._visit.state()

    def render(self) -> Image:
        """The server's."""
        return self._visit.render()

    def close(self) -> None:
        """Close the session."""
        self._visit.close_session()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _copy_env(self)


class RemoteRobotEnv(RobotEnv):
    """A robot environment on a server; `make_remote_type` makes the class of an address."""

    Options: ClassVar[type[Settings]] = RemoteOptions
    waits: ClassVar[bool] = True
    hosted: ClassVar[str]
    servers: ClassVar[Servers]

    def __init__(self, options: Settings | None = None) -> None:
        given = RemoteOptions() if options is None else options
        self._visit = RemoteSession(self.servers, self.hosted, given)
        self._told = self._visit.describe()
        super().__init__(RemoteOptions(**self._told["options"]))
        self.has_process = bool(self._told["has_process"])
        self.has_oracle = bool(self._told["has_oracle"])

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The task of the seed, from the server's environment."""
        return _make_remote_task(cls.servers, cls.hosted, options, seed)

    def layout(self) -> RobotEnvDescription:
        """The server's description."""
        description = wire.read_description(self._told.get("description") or self._told["world"])
        assert isinstance(description, RobotEnvDescription)
        return description

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[ArrayState, dict[str, JSON]]:
        """Start an episode on a server."""
        task = choose_task(self, seed, options)
        self._task = None
        turn = self._visit.reset(task, seed)
        self._task = task
        return turn.observation, turn.info

    def step(self, chunk: npt.NDArray[Any]) -> tuple[ArrayState, float, bool, bool, dict[str, JSON]]:
        """Execute a chunk on the server."""
        if self._task is None:
            raise InputError(f"{self.name} has no task yet; call reset first")
        turn = self._visit.step(self._check_chunk(chunk))
        return turn.observation, turn.reward, turn.terminated, turn.truncated, turn.info

    def begin(self, task: Task, seed: int) -> None:
        """Done by the server."""
        self._visit.reset(task, seed)

    def act(self, action: FloatArray) -> ActionEffect:
        """Execute one action as its own chunk."""
        turn = self._visit.step(np.asarray(action, dtype=np.float32)[None])
        return ActionEffect(bool(turn.info["success"]), float(turn.info.get("process", 0.0)))

    def arrays(self) -> Arrays:
        """The arrays of the last observation."""
        return dict(self._visit.turn.observation.arrays)

    def facts(self) -> dict[str, JSON]:
        """The structured form of the server's state."""
        found: dict[str, JSON] = json.loads(self.state()[StateForm.STRUCTURED])
        return found

    def state(self) -> dict[StateForm, str]:
        """The server's."""
        return self._visit.state()

    def expert(self) -> npt.NDArray[Any]:
        """The server's."""
        action: npt.NDArray[Any] = self._visit.oracle()[0]
        return action

    def image(self, camera: str) -> Image:
        """The image of the server's first camera; other cameras are among the arrays, if enabled."""
        return self._visit.render()

    def close(self) -> None:
        """Close the session."""
        self._visit.close_session()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _copy_env(self)
