"""Any Gymnasium environment with continuous actions, as a robot environment.

    env.name = "gymnasium:Pendulum-v1"
    env.name = "gymnasium:Mine-v0"       one of your own, vectorised: gymnasium.register(vector_entry_point=…)

The copies of a batch are one vector environment of Gymnasium's: the one that the id registers
(`vector_entry_point`, such as a simulator on a GPU), or else Gymnasium's own, which steps copies in turn.

Invariants
* A task is a seed, given to the place's own reset. A vector environment must take `options["reset_mask"]` and
  one seed per place, and must not reset places by itself (`AutoresetMode.DISABLED`).
* An action in [-1, 1] is scaled to the bounds of the action space.
* Success is a statement about the whole episode: its return has reached `success_reward` when it ends. An
  `info["success"]` (or `is_success`) of the environment itself counts instead, and ends the episode.
* Gymnasium's own end of an episode is the end here. There is no expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, JsonValue

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, ConfigError, EnvError, RobotEnvDescription, Task
from stepwell.envs.options import declare_host_option
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotOptions, round_numbers
from stepwell.envs.robots.cameras import choose_gl_backend
from stepwell.envs.robots.vector import Flags, VectorRobotEnv
from stepwell.envs.tiles import Image

DEFAULT_MAX_ACTIONS = 1000


class GymnasiumRobotOptions(RobotOptions):
    """How a Gymnasium environment with continuous actions is made and judged."""

    kwargs: dict[str, JsonValue] = declare_host_option({}, description="passed to gymnasium.make_vec")
    max_actions: int = Field(
        DEFAULT_MAX_ACTIONS, ge=1, le=1_000_000, description="actions after which an episode ends"
    )
    camera: tuple[str, ...] = Field(("render",), description="'render' is Gymnasium's own view")
    instruction: str | None = Field(None, description="what the policy is told; None: the id")
    success_reward: float | None = Field(
        None,
        description="return that counts as success; None: the environment's reward threshold, "
        "or any return above 0",
    )


def make_robot_type(spec: Any, name: str) -> type[VectorRobotEnv]:
    """The class of one Gymnasium id, by this name; its time limit is the default of `max_actions`."""
    limit = spec.max_episode_steps or DEFAULT_MAX_ACTIONS
    field = Field(limit, ge=1, le=1_000_000, description="actions after which an episode ends")
    options = type(
        "GymnasiumRobotOptions",
        (GymnasiumRobotOptions,),
        {"__module__": __name__, "__annotations__": {"max_actions": "int"}, "max_actions": field},
    )
    members = {
        "name": name,
        "spec": spec,
        "Options": options,
        "__doc__": f"Gymnasium's {spec.id}.",
    }
    return type("GymnasiumRobot", (GymnasiumRobot,), members)


class GymnasiumRobot(VectorRobotEnv):
    """A Gymnasium environment with continuous actions; `make_robot_type` makes the class of an id."""

    Options: ClassVar[type[Settings]] = GymnasiumRobotOptions
    has_oracle: bool = False
    spec: ClassVar[Any]
    options: GymnasiumRobotOptions

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A seed of this environment, made with these arguments."""
        content: dict[str, JSON] = {"id": cls.spec.id, "kwargs": options.kwargs, "seed": seed}
        return Task(cls.name, content, instruction=options.instruction or cls.spec.id, seed=seed)

    def layout(self) -> RobotEnvDescription:
        """The flattened observation, and the size of an action."""
        simulator = self._shared.open()
        assert isinstance(simulator, GymnasiumSimulator)
        arrays = {"proprio": ArraySpec((simulator.observation_size,))} | self.options.image_specs
        return RobotEnvDescription(self.name, arrays, len(simulator.low), self.options.max_actions)

    def open_simulator(self, size: int) -> GymnasiumSimulator:
        return GymnasiumSimulator(self.spec, self.options, size)


class GymnasiumSimulator:
    """A vector environment of Gymnasium."""

    def __init__(self, spec: Any, options: GymnasiumRobotOptions, size: int) -> None:
        import gymnasium
        from gymnasium.vector import AutoresetMode

        self._gymnasium, self._spec, self._options = gymnasium, spec, options
        if options.cameras:
            choose_gl_backend()  # for those that draw with MuJoCo
        mode = "vector_entry_point" if spec.vector_entry_point is not None else "sync"
        given: dict[str, Any] = {"render_mode": "rgb_array"} if mode == "sync" or options.cameras else {}
        if mode == "sync":
            given["vector_kwargs"] = {"autoreset_mode": AutoresetMode.DISABLED}
        given |= options.kwargs
        try:
            self._envs: Any = gymnasium.make_vec(spec.id, num_envs=size, vectorization_mode=mode, **given)
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            raise ConfigError(
                f"{spec.id} cannot be made with env.options.kwargs {options.kwargs}: {error}"
            ) from error
        if self._envs.metadata.get("autoreset_mode") is not AutoresetMode.DISABLED:
            raise ConfigError(
                f"the vector environment of {spec.id} resets places by itself; it must have "
                "metadata['autoreset_mode'] = AutoresetMode.DISABLED and take options['reset_mask']"
            )
        space = self._envs.single_action_space
        self.low, self.high = _read_bounds(spec.id, space)
        self.observation_size = int(gymnasium.spaces.flatdim(self._envs.single_observation_space))
        self._shape: tuple[int, ...] = self.low.shape if space.shape is None else space.shape
        self._returns = np.zeros(size)
        self._num_actions = np.zeros(size, np.int64)
        self._was_reset, self._has_ended = False, np.zeros(size, bool)  # as the vector environment sees it
        self._seen = np.zeros((size, self.observation_size), np.float32)
        self._images: Sequence[Image] | None = None

    def begin(self, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]) -> None:
        """Gymnasium's reset of these places with the tasks' seeds, which move their chance as well."""
        mask, given = np.zeros(len(self._returns), bool), [None] * len(self._returns)
        for place, task in zip(places, tasks, strict=True):
            content: dict[str, Any] = task.content
            mask[place], given[place] = True, content["seed"]
        touched = mask if self._was_reset else np.ones_like(mask)  # the first reset is of all places
        seen, _ = self._envs.reset(seed=given, options={"reset_mask": touched})
        self._was_reset, self._has_ended[touched] = True, False
        self._returns[mask], self._num_actions[mask] = 0.0, 0
        self._note_seen(seen, mask)

    def act(self, actions: FloatArray, moving: Flags) -> list[ActionEffect]:
        """One step of all places. An idle place has to be in some episode to be stepped with the others."""
        if (idle := self._has_ended & ~moving).any():
            self._envs.reset(options={"reset_mask": idle})
        scaled = self.low + (actions + 1.0) / 2.0 * (self.high - self.low)
        scaled = scaled.reshape(len(actions), *self._shape).astype(self._envs.single_action_space.dtype)
        seen, rewards, terminated, truncated, info = self._envs.step(scaled)
        rewards = _to_numpy(rewards).astype(np.float64)
        self._returns[moving] += rewards[moving]
        self._num_actions[moving] += 1
        self._has_ended = _to_numpy(terminated) | _to_numpy(truncated)
        ended = self._has_ended | (self._num_actions >= self._options.max_actions)
        told = _find_success(info)
        success = self._returns >= self._threshold if self._threshold is not None else self._returns > 0
        success = told if told is not None else success & ended
        self._note_seen(seen, moving)
        return [
            ActionEffect(bool(solved), float(reward), bool(end and not solved))
            for solved, reward, end in zip(success, rewards, ended, strict=True)
        ]

    def arrays(self, place: int) -> Arrays:
        shown: Arrays = {"proprio": self._seen[place].copy()}
        return shown | {camera: self.image(place, camera) for camera in self._options.cameras}

    def facts(self, place: int) -> dict[str, JSON]:
        return {
            "observation": round_numbers(self._seen[place]),
            "return": round(float(self._returns[place]), 4),
        }

    def image(self, place: int, camera: str) -> Image:
        """Gymnasium's own view in the size asked for."""
        from PIL import Image as PillowImage

        if self._images is None and self._envs.render_mode == "rgb_array":
            try:
                self._images = self._envs.render()
            except self._gymnasium.error.DependencyNotInstalled as error:
                raise ConfigError(f"images of {self._spec.id}: {error}") from error
        if self._images is None:
            raise ConfigError(f"{self._spec.id} gives no images; its render_mode must be 'rgb_array'")
        size = (self._options.image_size, self._options.image_size)
        pixels = np.asarray(self._images[place], dtype=np.uint8)
        return np.asarray(PillowImage.fromarray(pixels).resize(size, PillowImage.Resampling.BILINEAR))

    def close(self) -> None:
        self._envs.close()

    @property
    def _threshold(self) -> float | None:
        given = self._options.success_reward
        return self._spec.reward_threshold if given is None else given

    def _note_seen(self, seen: Any, mask: Flags) -> None:
        """Keep what these places show now; the others keep what they last showed."""
        self._images = None
        space = self._envs.single_observation_space
        if isinstance(space, self._gymnasium.spaces.Box):
            rows = _to_numpy(seen).reshape(len(mask), -1).astype(np.float32)
        else:
            parts = list(
                self._gymnasium.spaces.utils.flatten(space, one) for one in _split_places(seen, len(mask))
            )
            rows = np.asarray(parts, np.float32)
        self._seen[mask] = rows[mask]


def _split_places(seen: Any, size: int) -> list[Any]:
    """Nested arrays of all places as one nested observation per place."""
    if isinstance(seen, Mapping):
        parts = {name: _split_places(value, size) for name, value in seen.items()}
        return [{name: value[place] for name, value in parts.items()} for place in range(size)]
    if isinstance(seen, tuple):
        columns = [_split_places(value, size) for value in seen]
        return [tuple(column[place] for column in columns) for place in range(size)]
    return list(_to_numpy(seen))


def _to_numpy(value: Any) -> npt.NDArray[Any]:
    """An array of numpy, of torch on any device, or of another library."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _find_success(info: Mapping[str, Any]) -> Flags | None:
    for name in ("success", "is_success"):
        if name in info:
            return _to_numpy(info[name]).astype(bool)
    return None


def _read_bounds(name: str, space: Any) -> tuple[FloatArray, FloatArray]:
    low = np.asarray(space.low, np.float32).ravel()
    high = np.asarray(space.high, np.float32).ravel()
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise EnvError(f"{name} has an action without bounds: {space}; wrap it in gymnasium's RescaleAction")
    return low, high
