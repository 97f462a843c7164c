"""The world: what an agent must be told about an environment, as plain data.

An environment describes itself here, under its present settings (`guide` says only what is
true: a lake that is not slippery is not called slippery). Agents build prompts from it and
read answers against it, and so need not know any environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepwell.core.errors import InputError


class StateForm(StrEnum):
    """How a state is put into words: by an environment (the truth) and by an agent (its belief)."""

    NATURAL_LANGUAGE = "natural_language"
    SYMBOLIC = "symbolic"
    STRUCTURED = "structured"


@dataclass(frozen=True, slots=True)
class Actions:
    """What may be done in one turn: up to `max_per_turn` of `names`; without names, any one text.

    >>> Actions(("Up", "Down"), max_per_turn=3).is_text
    False
    """

    names: tuple[str, ...] = ()
    max_per_turn: int = 1
    separator: str = ","

    def __post_init__(self) -> None:
        if self.max_per_turn < 1:
            raise InputError(f"actions.max_per_turn must be at least 1, got {self.max_per_turn}")
        if self.is_text and self.max_per_turn != 1:
            raise InputError("actions.max_per_turn must be 1 where actions are free text")
        if len({name.casefold() for name in self.names}) != len(self.names):
            raise InputError(f"actions.names are not distinct: {', '.join(self.names)}")
        if any(self.separator in name or name != name.strip() or not name for name in self.names):
            raise InputError(
                f"actions.names must be free of {self.separator!r} and of blanks around: {self.names}"
            )

    @property
    def is_text(self) -> bool:
        """Whether an action is free text."""
        return not self.names


@dataclass(frozen=True, slots=True)
class Example:
    """One turn as an agent might write it, for the prompt."""

    observation: str
    reasoning: str
    prediction: str
    answer: str


@dataclass(frozen=True, slots=True)
class World:
    """An environment as its agents see it.

    `guide` holds the goal, the symbols and the rules. `examples` shows one turn in each
    state form the world has. A turn limit reached is a failure; `max_turns` says it.
    """

    name: str
    guide: str
    actions: Actions
    max_turns: int
    examples: Mapping[StateForm, Example] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise InputError(f"world.max_turns must be at least 1, got {self.max_turns}")
