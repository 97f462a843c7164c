"""The items of a text for the rule judge: things, directions, places, and the small words between them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from stepwell.rewards.judge.lexicon import Axis, Sign


class ItemKind(Enum):
    """The kind of an item."""

    THING = auto()
    DIRECTION = auto()  # directions, or none of them: near, beside, facing
    PLACE = auto()
    COPULA = auto()
    COLON = auto()
    THERE = auto()  # "there is", "I see": introduces a new thing
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
    """A thing as named in a text. `label` is its number; `many` is 0 for a plural, None for "all"."""

    kind: str
    label: int | None = None
    many: int | None = 1
    is_none: bool = False
    is_another: bool = False
    serial: int = 0
    """Distinguishes things without a number: a hole here, a hole there."""
    group: int | None = None
    """Things with the same value are different things: "two holes", "another hole"."""


@dataclass(frozen=True, slots=True)
class Item:
    """One item, with the fields of its kind."""

    what: ItemKind
    thing: Mention | None = None
    directions: tuple[tuple[Axis, Sign], ...] = ()
    number: float = 0.0
    axis: Axis | None = None
    place: tuple[tuple[int, float], ...] = ()
    is_counted: bool = False  # a place in words, which may count from 1
    is_owner: bool = False  # "the player's", "its"
    is_it: bool = False
    is_absolute: bool = False  # "top left": of the board, unless an object is named
    pushes: bool = False
