"""The interface of a robot environment: observations are arrays, actions come in chunks.

`RobotEnv` implements what all simulators share: resolving the task, checking chunks, counting actions, the
limit, the choice of reward. An environment implements the rest:

    make_task   options, seed -> Task          pure; the content determines the episode, with an instruction
    layout      -> RobotEnvDescription         names, shapes and dtypes of observations; sizes of an action
    begin       task, seed                     puts the simulator into the task's first state
    act         action [D] -> ActionEffect     one action in [-1, 1]: success, and the simulator's own reward
    arrays      -> named arrays                what the policy sees now
    expert      -> action [D]                  the action of the scripted expert
    facts       -> named numbers               the true state; `state()` turns it into sentences and JSON
    image       -> uint8 [H, W, 3]             the current state through a camera

Invariants
* A chunk is [C, D] finite numbers; values outside [-1, 1] are clipped. It stops at the action that ends the
  episode: a chunk of C has the same effect as C chunks of 1.
* Success ends the episode, and so do the action limit, which is part of the environment, and a failure that
  the simulator declares: all are `terminated`. A robot's episode is never `truncated`.
* `info` holds `success`, `num_actions` (executed in this chunk) and, if the simulator has its own reward,
  `process` (its sum over those actions).
* A task's content determines the episode: the same task and actions give the same arrays in any copy,
  whatever that copy played before.
* A state with a number that is not finite is a failure of the simulator (`EnvError`), never data.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
    ArraySpec,
    ArrayState,
    ConfigError,
    EnvError,
    InputError,
    RobotEnvDescription,
    StateForm,
    Task,
)
from stepwell.envs.base import choose_task
from stepwell.envs.robots.packages import import_simulator
from stepwell.envs.tiles import Image

FloatArray = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]


class RobotOptions(Settings):
    """What every robot environment can be asked for."""

    max_actions: int = Field(100, ge=1, le=100_000, description="actions after which an episode has failed")
    observation: Literal["state", "camera", "both"] = Field(
        "state", description="what the policy sees beside the robot itself: true positions, images, both"
    )
    camera: tuple[str, ...] = Field(
        (), max_length=16, description="cameras by name, one or several; the first one renders"
    )
    image_size: int = Field(64, ge=8, le=1024, description="height and width of an image in pixels")
    reward: Literal["sparse", "dense"] = Field(
        "sparse", description="sparse: 1 at success; dense: the simulator's own reward per action"
    )

    @field_validator("camera", mode="before")
    @classmethod
    def _accept_one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("camera")
    @classmethod
    def _require_camera(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        taken = {"proprio", "state"} & set(value)
        if not value or taken or len(set(value)) != len(value):
            raise ValueError("name at least one camera, each once, none of them 'proprio' or 'state'")
        return value

    @property
    def shows_state(self) -> bool:
        """Whether the true positions are among the arrays."""
        return self.observation != "camera"

    @property
    def cameras(self) -> tuple[str, ...]:
        """The cameras whose images are among the arrays."""
        return () if self.observation == "state" else self.camera

    @property
    def image_specs(self) -> dict[str, ArraySpec]:
        """The array specs of those images, as part of an environment's layout."""
        return {camera: ArraySpec((self.image_size, self.image_size, 3), "uint8") for camera in self.cameras}


_LOWEST, _HIGHEST = np.array(-1.0, np.float32), np.array(1.0, np.float32)  # twice as fast as plain numbers


class ActionEffect(NamedTuple):
    """The effect of one action: whether the task is solved, the simulator's own reward (0 if it has none),
    and whether the simulator ended the episode unsolved."""

    success: bool
    dense: float = 0.0
    has_failed: bool = False


@dataclass(slots=True)
class ChunkResult:
    """What the actions of a chunk have done so far."""

    reward: float = 0.0
    process: float = 0.0
    num_actions: int = 0
    success: bool = False


class RobotEnv(ABC):
    """An environment that a robot policy acts in, one task at a time."""

    name: ClassVar[str]
    extra: ClassVar[str] = ""  # stepwell[extra] installs the simulator,
    package: ClassVar[str | None] = None  # which is this package
    Options: ClassVar[type[Settings]]
    is_robot: ClassVar[bool] = True
    is_deterministic: ClassVar[bool] = True
    waits: ClassVar[bool] = False  # as in `Env`
    is_vector: ClassVar[bool] = False  # whether a batch of it is one simulator (`robots/vector.py`)
    # instance attributes, because options may change them
    has_process: bool = True  # whether the simulator has its own reward
    has_oracle: bool = True
    oracle_share: float = 0.9  # share of tasks that the oracle is known to solve
    num_checked: ClassVar[int] = 10  # tasks that `stepwell envs check` plays

    def __init__(self, options: Settings | None = None) -> None:
        self.options: Any = self.Options() if options is None else options
        if not isinstance(self.options, self.Options):
            raise InputError(
                f"options of {type(self).__name__} must be a {self.Options.__qualname__}, "
                f"got {type(options).__name__}; from plain values use make_env"
            )
        self._refuse_missing_reward()
        self._task: Task | None = None
        self._is_over = True
        self._num_actions = 0

    @classmethod
    @abstractmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The task of a seed; its content determines the episode."""

    @abstractmethod
    def layout(self) -> RobotEnvDescription:
        """The arrays and actions under the current options."""

    @abstractmethod
    def begin(self, task: Task, seed: int) -> None:
        """Put the simulator into the first state of `task`."""

    @abstractmethod
    def act(self, action: FloatArray) -> ActionEffect:
        """Execute one action [D] in [-1, 1]."""

    @abstractmethod
    def arrays(self) -> Arrays:
        """What the policy sees now, as declared by `layout`."""

    @abstractmethod
    def facts(self) -> dict[str, JSON]:
        """The true state as named numbers and lists of numbers."""

    @abstractmethod
    def image(self, camera: str) -> Image:
        """The current state through one camera, uint8 [image_size, image_size, 3]."""

    def expert(self) -> npt.NDArray[Any]:
        """The scripted expert's action for the current state, in any range."""
        raise EnvError(f"{self.name} has no scripted expert under these options")

    def share(self, other: RobotEnv) -> None:  # noqa: B027 (a simulator may have nothing to share)
        """Share the resources of `other`, an environment with the same options, if only one is used at a
        time.

        Sharing must not affect the episodes of either.
        """

    def close(self) -> None:  # noqa: B027 (a simulator may hold nothing)
        """Release the simulator's resources; calling it twice is allowed."""

    @classmethod
    def require(cls) -> None:
        """Raise a `ConfigError` with an install command if the simulator is not installed."""
        if cls.package is not None:
            import_simulator(cls.package, env=cls.name, extra=cls.extra)

    @cached_property
    def description(self) -> RobotEnvDescription:
        """The description for building a policy."""
        return self.layout()

    @property
    def task(self) -> Task:
        """The task being played."""
        if self._task is None:
            raise InputError(f"{self.name} has no task yet; call reset first")
        return self._task

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[ArrayState, dict[str, JSON]]:
        """Start an episode: of `options["task"]`, or else of the task that `seed` makes."""
        task = choose_task(self, seed, options)
        self.forget_episode()
        self.begin(task, task.seed if seed is None else seed)
        return self.start_counting(task), {}

    def forget_episode(self) -> None:
        """Forget the last episode: a failed begin leaves no half-started one."""
        self._task, self._is_over = None, True

    def start_counting(self, task: Task) -> ArrayState:
        """Count the actions of an episode that has begun; its first observation."""
        self._task, self._is_over, self._num_actions = task, False, 0
        return self.observe()

    def step(self, chunk: npt.NDArray[Any]) -> tuple[ArrayState, float, bool, bool, dict[str, JSON]]:
        """Execute the actions of `chunk` [C, D] in order until one ends the episode."""
        result = ChunkResult()
        for action in self.check_turn(chunk):
            self.note_move(result, self.act(action))
            if self._is_over:
                break
        return self.end_chunk(result)

    def check_turn(self, chunk: npt.NDArray[Any]) -> FloatArray:
        """A chunk that may be executed now, as [C, D] float32 in [-1, 1]."""
        if self._is_over:
            raise InputError(f"the episode of {self.name} is over; call reset before step")
        return self._check_chunk(chunk)

    def note_move(self, result: ChunkResult, moved: ActionEffect) -> None:
        """Add one action to the result of its chunk, and end the episode where it ends."""
        result.success, dense = bool(moved.success), float(moved.dense)
        result.process += dense
        result.reward += dense if self.options.reward == "dense" else float(result.success)
        result.num_actions += 1
        self._num_actions += 1
        self._is_over = result.success or moved.has_failed or self._num_actions >= self.options.max_actions

    def end_chunk(self, result: ChunkResult) -> tuple[ArrayState, float, bool, bool, dict[str, JSON]]:
        """What `step` returns after a chunk."""
        info: dict[str, JSON] = {"success": result.success, "num_actions": result.num_actions}
        if self.has_process:
            info["process"] = result.process
        return self.observe(), result.reward, self._is_over, False, info

    def observe(self) -> ArrayState:
        """What the policy sees now; a simulation that has diverged is an `EnvError`."""
        arrays = self.arrays()
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not _is_finite(array):
                raise EnvError(f"{self.name}: the simulation diverged, {name} is not finite")
        return ArrayState(arrays, self._find_instruction())

    def oracle(self) -> FloatArray:
        """The scripted expert's action [D] for the current state, in [-1, 1]."""
        _ = self.task
        action = np.asarray(self.expert(), dtype=np.float32)
        return np.clip(action, -1.0, 1.0)

    def state(self) -> dict[StateForm, str]:
        """The true state in sentences and as JSON."""
        facts = self.facts()
        return {
            StateForm.NATURAL_LANGUAGE: " ".join(
                _write_sentence(name, value) for name, value in facts.items()
            ),
            StateForm.STRUCTURED: json.dumps(facts),
        }

    def render(self) -> Image:
        """The current state through the first camera."""
        _ = self.task
        return self.image(self.options.camera[0])

    def _find_instruction(self) -> str:
        return "" if self._task is None else self._task.instruction

    def _refuse_missing_reward(self) -> None:
        if self.options.reward == "dense" and not self.has_process:
            raise ConfigError(f"env.options.reward: {self.name} has no dense reward; use 'sparse'")

    def _check_chunk(self, chunk: npt.NDArray[Any]) -> FloatArray:
        """`chunk` as [C, D] float32 in [-1, 1]."""
        dim = self.description.action_dim
        actions = np.asarray(chunk)
        if (
            actions.ndim != 2
            or actions.shape[1] != dim
            or not len(actions)
            or actions.dtype.kind not in "fiu"
        ):
            raise InputError(
                f"a chunk for {self.name} is an array [C, {dim}] of numbers with C at least 1, "
                f"got {actions.dtype} of shape {actions.shape}"
            )
        actions = actions.astype(np.float32, copy=False)
        if not _is_finite(actions):
            raise InputError(f"a chunk for {self.name} holds nan or infinity; check what the policy sampled")
        clipped: FloatArray = np.maximum(np.minimum(actions, _HIGHEST), _LOWEST)
        return clipped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_finite(array: npt.NDArray[Any]) -> bool:
    """Whether all numbers are finite; the fastest test is whether their sum of squares is."""
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def round_numbers(values: npt.ArrayLike, decimals: int = 4) -> list[JSON]:
    """An array as a list of rounded numbers, for `facts`."""
    flat = np.round(np.asarray(values, dtype=np.float64), decimals).ravel() + 0.0  # + 0.0: no "-0.0"
    return [float(value) for value in flat]


def _write_sentence(name: str, value: JSON) -> str:
    words = name.replace("_", " ")
    if isinstance(value, list):
        return f"The {words} is at ({', '.join(f'{number:.3f}' for number in value)})."
    return f"The {words} is {value:.3f}." if isinstance(value, float) else f"The {words} is {value}."
