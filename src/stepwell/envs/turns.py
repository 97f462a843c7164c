"""One turn of an environment as data: its answer to a reset or to actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepwell.core import JSON, ArrayState, ConfigError, EnvError, Observation, StateForm, Task
from stepwell.core.names import describe_missing_module
from stepwell.core.text import clean_texts, describe_error, replace_half_surrogates


@dataclass(slots=True)
class Turn:
    """An environment's answer to a reset (reward 0) or to a turn. With `error`, the other fields are
    undefined.

    `state` is the true state by form (`core.StateForm`), if requested.
    """

    observation: Observation | ArrayState = field(default_factory=Observation)
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, JSON] = field(default_factory=dict)
    error: Exception | None = None
    state: dict[str, str] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether no further turn follows."""
        return self.terminated or self.truncated or self.error is not None


def start_episode(env: Any, task: Task, seed: int | None) -> Turn:
    """Reset an environment; its texts are made safe to store."""
    observation, info = env.reset(seed=seed, options={"task": task})
    return Turn(observation, info=clean_texts(info))


def play_turn(env: Any, actions: Any) -> Turn:
    """Play one turn of an environment; its texts are made safe to store."""
    observation, reward, terminated, truncated, info = env.step(actions)
    return Turn(observation, reward, terminated, truncated, clean_texts(info))


def read_state(env: Any) -> dict[str, str]:
    """The true state of an environment by form."""
    return _clean_state(env.state())


async def start_episode_async(env: Any, task: Task, seed: int | None) -> Turn:
    """As `start_episode`, of an `AsyncEnv`."""
    observation, info = await env.reset_async(seed=seed, options={"task": task})
    return Turn(observation, info=clean_texts(info))


async def play_turn_async(env: Any, actions: Any) -> Turn:
    """As `play_turn`, of an `AsyncEnv`."""
    observation, reward, terminated, truncated, info = await env.step_async(actions)
    return Turn(observation, reward, terminated, truncated, clean_texts(info))


async def read_state_async(env: Any) -> dict[str, str]:
    """As `read_state`, of an `AsyncEnv`."""
    return _clean_state(await env.state_async())


def make_failed_turn(name: str, index: int, error: BaseException) -> Turn:
    """The turn of an environment that raised."""
    problem = EnvError(f"{name} (environment {index}){_describe(error)}")
    problem.__cause__ = error
    return Turn(error=problem)


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f": {describe_missing_module(error.name)}"
    return f": {error}" if isinstance(error, ConfigError) else f" raised {describe_error(error)}"


def note_failed_state(turn: Turn, name: str, error: BaseException) -> None:
    """Fail a turn because its environment raised when its state was read."""
    turn.error = EnvError(f"{name}: state() raised {describe_error(error)}")
    turn.error.__cause__ = error


def _clean_state(state: dict[StateForm, str]) -> dict[str, str]:
    return {form.value: replace_half_surrogates(text) for form, text in state.items()}
