"""One turn of an environment as data: its answer to a reset or to actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepwell.core import JSON, ArrayState, Observation
from stepwell.core.text import clean_texts, replace_half_surrogates


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


def play_turn(env: Any, actions: Any) -> Turn:
    """Play one turn of an environment; its texts are made safe to store."""
    observation, reward, terminated, truncated, info = env.step(actions)
    return Turn(observation, reward, terminated, truncated, clean_texts(info))


def read_state(env: Any) -> dict[str, str]:
    """The true state of an environment by form."""
    return {form.value: replace_half_surrogates(text) for form, text in env.state().items()}
