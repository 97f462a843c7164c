"""What a judge must know about an environment's states: the names of objects and the relevant relations.

    frame "grid"         objects have [row, column]; a fact is the relative place of two of them (`pairs`)
    frame "coordinates"  objects have coordinates, correct within `tolerance`; a fact is each of them
    frame "bearing"      objects have a direction and a distance from the anchor

An environment with one of the last two frames need not list its objects. The objects in its structured state
are added to `names` when a state is read. They also get short names if these are unambiguous: the last of
several words, or the first word and "one" ("the clock", "the green one").

An environment includes its `StateVocabulary` in its description. No judge knows any environment by name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

Frame = Literal["grid", "coordinates", "bearing"]
OTHER = "?"
"""The kind of objects that are mentioned but not judged: walls, floor, the grid itself."""

_PRONOUNS = ("i", "me", "my", "you", "your", "myself", "yourself", "they", "them")
PLAYER_NAMES = ("player", "agent", "character", "avatar", *_PRONOUNS[:-2])
_SCENERY = (
    "wall", "floor", "ice", "grid", "board", "room", "cell", "tile", "square", "path", "edge", "border",
    "way", "map", "lake", "space", "ground", "obstacle", "image", "picture", "corner", "surface", "block",
    "they", "them", "everything", "nothing", "something", "route", "action", "danger", "area", "exit",
)  # fmt: skip


@dataclass(frozen=True)
class StateVocabulary:
    """The vocabulary of one environment.

    `pairs` holds (kind, reference kind). `symbols` maps characters of the board to kinds. `synonyms` holds
    other names of objects that a state may name. `fixed` names fields of the structured form that do not
    depend on the state (a size). `criteria` are the criteria for a judging model, one per line.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()
    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    frame: Frame = "grid"
    anchor: str = "player"
    tolerance: float = 0.0
    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: tuple[str, ...] = ("size", "grid_size")
    criteria: str = ""

    @cached_property
    def phrases(self) -> dict[tuple[str, ...], tuple[str, bool]]:
        """All names, singular and plural, as words -> the kind, and whether it is the plural."""
        found: dict[tuple[str, ...], tuple[str, bool]] = {}
        for kind, names in {OTHER: _SCENERY, **self.names}.items():
            for name in names:
                words = tuple(name.split())
                if name not in _PRONOUNS:
                    found[(*words[:-1], make_plural(words[-1]))] = (kind, True)
                found[words] = (kind, False)
        return found

    @cached_property
    def first_words(self) -> frozenset[str]:
        """The first words of all names."""
        return frozenset(words[0] for words in self.phrases)

    @cached_property
    def max_words(self) -> int:
        """The largest number of words in one name."""
        return max(map(len, self.phrases), default=1)

    def find_kind(self, name: str) -> str | None:
        """Find the kind of a dictionary key: `box_positions` -> `box`."""
        words = split_key(name)
        while words and words[-1] in ("position", "positions", "coordinates", "coordinate", "location"):
            words = words[:-1]
        known = self.phrases.get(words)
        return None if known is None or known[0] == OTHER else known[0]

    def add_things(self, keys: Iterable[str]) -> StateVocabulary:
        """Extend this vocabulary by the objects that a structured state names."""
        fresh = {key: split_key(key) for key in keys if self.find_kind(key) is None and split_key(key)}
        if not fresh:
            return self
        short = Counter(name for words in fresh.values() for name in self._shorten(words))
        added = {
            key: (
                " ".join(words),
                "".join(words),
                *self.synonyms.get(" ".join(words), ()),
                *(name for name in self._shorten(words) if short[name] == 1 and (name,) not in self.phrases),
            )
            for key, words in fresh.items()
        }
        return replace(self, names={**self.names, **added})

    def _shorten(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """List the short names of an object whose name has several words; they are used if unambiguous."""
        first, last = words[0], words[-1]
        if len(words) == 1 or last == "can":  # "can" in "garbage can" is not a verb
            return ()
        return (last, first, f"{first} one", f"{first} block") if self.frame == "coordinates" else (last,)


def split_key(name: str) -> tuple[str, ...]:
    """Split a key into lower-case words: `red_cube` and `RedCube` are two words."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[a-z]+|\d+", spaced.lower()))


def make_plural(word: str) -> str:
    """Form the plural: `boxes` of `box`."""
    return word + ("es" if word.endswith(("x", "s", "sh", "ch")) else "s")
