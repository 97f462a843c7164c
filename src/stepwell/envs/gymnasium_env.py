"""Any Gymnasium environment with discrete or text actions, as an environment for language agents.

    env.name = "gymnasium:CartPole-v1"

One with continuous actions is a robot's environment (`robots/gymnasium_robot.py`).
Discrete actions are named by their numbers, or by `action_names`. Observations are written in a
short readable form (numbers rounded, one line per entry of a dict) or shown as images. A task is
a seed: the same seed and actions give the same episode, as far as that environment keeps its word.

Invariants
* Gymnasium's own truncation (its time limit) is `truncated`; our turn limit is `terminated`.
* Success is a statement about the whole episode: its return has reached `success_reward` when it ends.
* A text that the action space does not contain is not passed on: that turn does nothing.
* There is no oracle: nothing is known about the environment but its interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, JsonValue

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, ConfigError, EnvDescription, Observation, Task
from stepwell.core.user_code import import_user_module
from stepwell.envs.base import NOTHING, Effect, Env
from stepwell.envs.options import declare_host_option
from stepwell.envs.robots.base import RobotEnv
from stepwell.envs.robots.gymnasium_robot import make_robot_type
from stepwell.envs.tiles import Image

DEFAULT_MAX_TURNS = 100


class GymnasiumOptions(Settings):
    """How a Gymnasium environment is made, named, shown and judged."""

    kwargs: dict[str, JsonValue] = declare_host_option({}, description="passed to gymnasium.make")
    action_names: tuple[str, ...] | None = Field(
        None, description="names of the discrete actions in order; None: their numbers"
    )
    guide: str | None = Field(None, description="what the agent is told; None: a sentence with the id")
    max_turns: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description=f"None: the environment's own time limit, or {DEFAULT_MAX_TURNS}",
    )
    max_actions_per_turn: int = Field(
        1, ge=1, le=1000, description="actions of one turn (discrete actions only)"
    )
    observation: Literal["text", "image", "both"] = Field("text", description="what the agent is shown")
    decimals: int = Field(3, ge=0, le=12, description="places after the point of numbers in a text")
    success_reward: float | None = Field(
        None,
        description="return that counts as success; None: the environment's reward threshold, "
        "or any return above 0",
    )


@lru_cache(maxsize=256)
def make_gymnasium_type(gym_id: str) -> type[Env] | type[RobotEnv]:
    """The environment class of one Gymnasium id: a robot's if its actions are continuous.

    With `module:ID` the module is imported first, which registers the id: in every process of a run.
    """
    gymnasium = _import_gymnasium()
    module, _, own_id = gym_id.rpartition(":")
    if module:
        import_user_module(module, f"env 'gymnasium:{gym_id}'")
    try:
        spec = gymnasium.spec(own_id)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"env.name 'gymnasium:{gym_id}': {error}") from error
    if _has_continuous_actions(gymnasium, spec):
        return make_robot_type(spec, f"gymnasium:{gym_id}")
    members = {"name": f"gymnasium:{gym_id}", "spec": spec, "__doc__": f"Gymnasium's {gym_id}."}
    return type("GymnasiumEnv", (GymnasiumEnv,), members)


class GymnasiumEnv(Env):
    """A Gymnasium environment; `make_gymnasium_type` makes the class of an id."""

    Options: ClassVar[type[Settings]] = GymnasiumOptions
    has_oracle: ClassVar[bool] = False
    spec: ClassVar[Any]
    options: GymnasiumOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        gymnasium = _import_gymnasium()
        kwargs: dict[str, Any] = {"disable_env_checker": True, **self.options.kwargs}
        if self.options.observation != "text":
            kwargs.setdefault("render_mode", "rgb_array")
        try:
            self.gym = gymnasium.make(self.spec, **kwargs)
        except (gymnasium.error.Error, TypeError, ImportError) as error:
            raise ConfigError(
                f"{self.name} cannot be made with env.options.kwargs {kwargs}: {error}"
            ) from error
        self._space: Any = self.gym.action_space
        self._numbers = self._number_actions(gymnasium.spaces)
        self._return = 0.0
        self._seen: Any = None

    @cached_property
    def description(self) -> EnvDescription:
        """The guide given, or one that claims nothing beyond the interface."""
        limit = self.options.max_turns or self.spec.max_episode_steps or DEFAULT_MAX_TURNS
        guide = self.options.guide or (
            f"You act in the environment {self.spec.id}. Choose actions that make the total reward large."
        )
        names = tuple(self._numbers)
        return EnvDescription(self.name, guide, ActionSpace(names, self.options.max_actions_per_turn), limit)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A seed of this environment, made with these arguments."""
        return Task(cls.name, {"id": cls.spec.id, "kwargs": options.kwargs, "seed": seed}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Gymnasium's reset with the task's seed, which moves its chance as well."""
        self._return = 0.0
        content: dict[str, Any] = task.content
        self._seen, _ = self.gym.reset(seed=content["seed"])

    def act(self, action: str) -> Effect:
        """One step of the environment."""
        given = self._numbers[action] if self._numbers else action
        if not self._numbers and not self._space.contains(action):
            return NOTHING
        self._seen, reward, terminated, truncated, _ = self.gym.step(given)
        self._return += float(reward)
        return Effect(float(reward), bool(terminated), bool(truncated and not terminated))

    def step(self, actions: Sequence[str]) -> tuple[Observation, float, bool, bool, dict[str, JSON]]:
        """One turn; success is known when the episode is over."""
        observation, reward, terminated, truncated, info = super().step(actions)
        info["success"] = (terminated or truncated) and self._is_success()
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        """What the environment last returned, as text, image, or both."""
        shown = self.options.observation
        text = "" if shown == "image" else write_observation(self._seen, self.options.decimals)
        return Observation(text, () if shown == "text" else (self.render(),))

    def oracle(self) -> list[str]:
        """Always []: no solver is known for a foreign environment."""
        return []

    def render(self) -> Image:
        """The observation if it is an image, else Gymnasium's rendering, else the text."""
        if _is_image(self._seen):
            return np.asarray(self._seen, dtype=np.uint8)
        if self.gym.render_mode != "rgb_array":
            return super().render()
        try:
            return np.asarray(self.gym.render(), dtype=np.uint8)
        except _import_gymnasium().error.DependencyNotInstalled as error:
            raise ConfigError(f"images of {self.name}: {error}") from error

    def close(self) -> None:
        """Close the environment."""
        self.gym.close()

    def _is_success(self) -> bool:
        threshold = self.options.success_reward
        if threshold is None:
            threshold = self.spec.reward_threshold
        return self._return > 0 if threshold is None else self._return >= threshold

    def _number_actions(self, spaces: Any) -> dict[str, int]:
        """Names of discrete actions with what they stand for; empty for text."""
        names = self.options.action_names
        if isinstance(self._space, spaces.Text):
            if names is not None or self.options.max_actions_per_turn != 1:
                raise ConfigError(
                    f"{self.name} takes free text; leave out env.options.action_names, max_actions_per_turn"
                )
            return {}
        if not isinstance(self._space, spaces.Discrete):
            raise ConfigError(
                f"{self.name} has the action space {self._space}; only Discrete, Text and Box can be used. "
                "Write an Env of your own around it (stepwell init env NAME)"
            )
        numbers = range(int(self._space.start), int(self._space.start + self._space.n))
        names = tuple(map(str, numbers)) if names is None else names
        if len(names) != len(numbers):
            raise ConfigError(
                f"env.options.action_names has {len(names)} names, {self.name} has {len(numbers)} actions"
            )
        return dict(zip(names, numbers, strict=True))


def write_observation(value: Any, decimals: int = 3) -> str:
    """An observation as short readable text.

    >>> print(write_observation({"speed": np.array([0.12345, -2.0]), "gear": np.int64(3)}, decimals=2))
    speed: [0.12, -2.0]
    gear: 3
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {write_observation(part, decimals)}" for name, part in value.items())
    if isinstance(value, tuple):
        return "(" + ", ".join(write_observation(part, decimals) for part in value) + ")"
    if _is_image(value):
        raise ConfigError("this environment shows images; set env.options.observation = 'image'")
    array = np.asarray(value)
    if array.ndim == 0:
        return _format_number(array.item(), decimals)
    if array.ndim == 1:
        return "[" + ", ".join(_format_number(item, decimals) for item in array.tolist()) + "]"
    return "\n".join(write_observation(row, decimals) for row in array)


def _has_continuous_actions(gymnasium: Any, spec: Any) -> bool:
    """Whether actions are vectors of numbers. An environment that needs arguments is taken to have words."""
    try:
        env = gymnasium.make_vec(spec.id, 1) if spec.entry_point is None else gymnasium.make(spec)
    except (gymnasium.error.Error, TypeError, ImportError):
        return False
    with contextlib.closing(env):
        space = env.single_action_space if spec.entry_point is None else env.action_space
        return isinstance(space, gymnasium.spaces.Box)


def _format_number(value: Any, decimals: int) -> str:
    return str(round(value, decimals) + 0.0) if isinstance(value, float) else str(value)  # + 0.0: no "-0.0"


def _is_image(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.shape[2:] == (3,)


def _import_gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            "gymnasium environments need the package gymnasium: pip install gymnasium"
        ) from error
    return gymnasium
