"""Primitives as text: `pick(62,-55,20)|place(75,33,50)`, in whole millimetres.

Invariants
* `read_skills(write_skills(skills)) == skills`.
* A text is read as a whole or not at all: what is not a list of primitives gives None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

SEPARATOR = "|"
NUM_NUMBERS = {"pick": 3, "place": 3, "push": 6}
_SKILL = re.compile(r"\s*(pick|place|push)\s*\(([^()]*)\)\s*")
_NUMBER = re.compile(r"\s*([+-]?\d{1,6})(?:\.0+)?\s*")


class Skill(NamedTuple):
    """One primitive and where: a point, or two for a push."""

    name: str
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.numbers))})"


def write_skills(skills: Sequence[Skill]) -> str:
    """The text of some primitives.

    >>> write_skills([Skill("pick", (62, -55, 20)), Skill("place", (75, 33, 50))])
    'pick(62,-55,20)|place(75,33,50)'
    """
    return SEPARATOR.join(map(str, skills))


def read_skills(text: str) -> list[Skill] | None:
    """The primitives of a text; None where it is none."""
    skills = [_read_skill(piece) for piece in text.split(SEPARATOR)]
    return None if None in skills else [skill for skill in skills if skill is not None]


def _read_skill(piece: str) -> Skill | None:
    found = _SKILL.fullmatch(piece)
    if found is None:
        return None
    numbers = [_NUMBER.fullmatch(number) for number in found[2].split(",")]
    if len(numbers) != NUM_NUMBERS[found[1]] or None in numbers:
        return None
    return Skill(found[1], tuple(int(number[1]) for number in numbers if number is not None))
