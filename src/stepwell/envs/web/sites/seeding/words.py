"""The words of the sites by size, read from `words.toml`, and texts made from their patterns."""

from __future__ import annotations

import random
import re
import tomllib
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any

_BRACES = re.compile(r"{(\w+)}")


@dataclass(frozen=True, slots=True)
class SiteWords:
    """Lists by name, numbers by name, and the size they belong to."""

    size: str
    table: dict[str, Any]

    @property
    def today(self) -> str:
        """The date on which every episode happens."""
        return str(self.table["today"])

    @property
    def people(self) -> list[str]:
        """Who has an account; the first is the one whose tasks are done."""
        return self.list("people")

    def list(self, name: str) -> list[str]:
        """A list of words or patterns, shared by all: nobody changes it."""
        words: list[str] = self.table[name]
        return words

    def count(self, name: str) -> int:
        """How many of something this size has."""
        return int(self.table[f"num_{name}"])

    def draw(self, rng: random.Random, name: str, **given: str) -> str:
        """A word of a list, with the lists that it names in braces filled in."""
        pattern = rng.choice(self.list(name))
        made = _BRACES.sub(lambda m: given.get(m[1]) or rng.choice(self.list(m[1])), pattern)
        return made[0].upper() + made[1:] if self.size == "full" and name != "boards" else made

    def draw_unique(self, rng: random.Random, name: str, seen: set[str], **given: str) -> str:
        """A text that was not drawn before; when words run out, a number makes it so."""
        made = self.draw(rng, name, **given)
        for _ in range(50):
            if made not in seen:
                break
            made = self.draw(rng, name, **given)
        number = 2
        unique = made
        while unique in seen:
            unique, number = f"{made} {number}", number + 1
        seen.add(unique)
        return unique

    def draw_day(self, rng: random.Random) -> str:
        """A date before today."""
        return _list_days(self.today, self.table["days"])[rng.randint(1, self.table["days"])]


@cache
def _list_days(today: str, num_days: int) -> tuple[str, ...]:
    """Today and the days before it, written as today is: with the year or without."""
    year = "" if len(today) > 5 else "2026-"
    last = date.fromisoformat(year + today)
    return tuple(str(last - timedelta(days=n))[len(year) :] for n in range(num_days + 1))


@cache
def load_words(size: str) -> SiteWords:
    """The words of a size."""
    path = Path(__file__).with_name("words.toml")
    table = tomllib.loads(path.read_text(encoding="utf-8"))[size]
    lists = {name: [str(word) for word in value] for name, value in table.items() if isinstance(value, list)}
    return SiteWords(size, table | lists)


def shorten_name(name: str) -> str:
    """A person's account name: what stands in addresses.

    >>> shorten_name("Emma Stone")
    'emma.stone'
    """
    return name.lower().replace(" ", ".")
