"""A user's own reward parts: functions named in `[[rewards.parts]]`, called once per step.

    def reward(step):                      # a StepOutcome
        return -0.01 * len(step.text)      # any finite number; the part is weight times this number

If a function raises, or does not return a finite number, the run stops with an error that names it.
"""

from __future__ import annotations

import inspect
import marshal
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.config.run import OwnPartConfig
from stepwell.core.errors import ConfigError
from stepwell.core.ids import hash_bytes
from stepwell.core.observation import Observation
from stepwell.core.task import Task
from stepwell.core.user_objects import F, find_object, mark_kind


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a reward function gets to know about one step."""

    text: str
    """the reply, as the agent wrote it"""
    actions: tuple[str, ...]
    """the actions read from it; empty if it could not be read"""
    observation: Observation
    """what the agent saw before it replied (`.text`, `.images`)"""
    next_observation: Observation
    """what it saw after its actions"""
    env_reward: float
    """the environment's reward for the step"""
    is_last: bool
    """whether the episode ended with this step"""
    success: bool
    """whether the task is solved after this step"""
    task: Task
    """the task of the episode (`.content`, `.seed`)"""
    turn: int
    """number of the step in its episode, from 0"""


@dataclass(frozen=True, slots=True)
class OwnPart:
    """One part: its settings and the function behind them."""

    config: OwnPartConfig
    function: Callable[[StepOutcome], Any]

    @property
    def code_hash(self) -> str:
        """Hash of the function's file, or of its compiled code without a file (in a notebook)."""
        file = getattr(sys.modules.get(self.function.__module__), "__file__", None)
        if file:
            return hash_bytes(Path(file).read_bytes())
        code = getattr(self.function, "__code__", None)
        return hash_bytes(marshal.dumps(code)) if code else ""

    def score(self, outcome: StepOutcome) -> float:
        """The part of one step: `weight` times the function's result."""
        try:
            value = self.function(outcome)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"{_describe_part(self.config)} raised {type(error).__name__}: {error}{_describe_line(error)}"
            ) from error
        is_number = not isinstance(value, str | bytes) and hasattr(value, "__float__")
        if not is_number or not math.isfinite(float(value)):
            raise ConfigError(
                f"{_describe_part(self.config)} returned {value!r}; it must return a finite number"
            )
        return self.config.weight * float(value)


def reward_part(function: F) -> F:
    """Mark a function as a reward part, so that `stepwell check` knows what it is."""
    return mark_kind(function, "reward")


def load_own_parts(configs: Sequence[OwnPartConfig]) -> tuple[OwnPart, ...]:
    """The functions behind `rewards.parts`, imported and checked."""
    return tuple(OwnPart(config, _load_function(config)) for config in configs)


def _load_function(config: OwnPartConfig) -> Callable[[StepOutcome], Any]:
    function: Any = find_object(config.function, _describe_part(config))
    if not callable(function) or inspect.iscoroutinefunction(function):
        kind = "async" if callable(function) else type(function).__name__
        raise ConfigError(
            f"{_describe_part(config)} is {kind}, not a plain function; write def reward(step): ..."
        )
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise ConfigError(
            f"{_describe_part(config)} must take one argument, the step: def reward(step): ..."
        ) from None
    return function  # type: ignore[no-any-return]


def _describe_part(config: OwnPartConfig) -> str:
    return f"rewards.parts {config.name!r}: {config.function}"


def _describe_line(error: BaseException) -> str:
    """The place in the user's code where an error arose."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
