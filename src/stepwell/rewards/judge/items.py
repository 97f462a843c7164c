"""What texts are made of, to a judge: things, directions, places, and the small words between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from stepwell.rewards.judge.lexicon import Axis, Sign


class Is(Enum):
    """What an item is."""

    THING = auto()
    DIRECTION = auto()  # directions, or none of them: near, beside, facing
    PLACE = auto()
    COPULA = auto()
    COLON = auto()
    THERE = auto()  # "there is", "I see": a new thing comes in
    MOVE = auto()
    NOT = auto()
    BUT = auto()
    MAYBE = auto()
    AND = auto()
    COMMA = auto()
    OF = auto()
    STRAIGHT = auto()
    ABSOLUTE = auto()
    DISTANCE = auto()
    END = auto()
    QUESTION = auto()


@dataclass(frozen=True, slots=True)
class Mention:
    """A thing as a text names it. `label` is its number; `many` 0 for a plural, None for "all"."""

    kind: str
    label: int | None = None
    many: int | None = 1
    is_none: bool = False
    is_another: bool = False
    serial: int = 0
    """Tells apart things without a number: a hole here, a hole there."""
    group: int | None = None
    """Things of one group are different ones: "two holes", "another hole"."""


@dataclass(frozen=True, slots=True)
class Item:
    """One of them, with what belongs to its kind."""

    what: Is
    thing: Mention | None = None
    directions: tuple[tuple[Axis, Sign], ...] = ()
    number: float = 0.0
    axis: Axis | None = None
    place: tuple[tuple[int, float], ...] = ()
    is_counted: bool = False  # a place in words, which may count from 1
    is_owner: bool = False  # "the player's", "its"
    is_it: bool = False
    is_absolute: bool = False  # "top left": of the board, unless somebody is named
    pushes: bool = False
