"""What a judge must know of a world, as data: the names of its things and which relations count.

    frame "grid"         things have [row, column]; a truth is which thing lies where of which (`pairs`)
    frame "coordinates"  things have coordinates, right within `tolerance`; a truth is each of them
    frame "bearing"      things lie in a direction and at a distance as seen from the anchor

A world of the last two frames need not list its things: those named in its structured state are
added to `names` when a state is read, with what they may be called for short: of several words the
last, or the first and "one", where only one thing is called so ("the clock", "the green one").
`also` holds other words for things that a state may name. A world of one's own hands over a
`Vocabulary`; nothing else in the judge knows any world.
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
"""The kind of things that are talked about but not judged: walls, floor, the grid itself."""

_ALONE = ("i", "me", "my", "you", "your", "myself", "yourself", "they", "them")
_PLAYER = ("player", "agent", "character", "avatar", *_ALONE[:-2])
_SCENERY = (
    "wall", "floor", "ice", "grid", "board", "room", "cell", "tile", "square", "path", "edge", "border",
    "way", "map", "lake", "space", "ground", "obstacle", "image", "picture", "corner", "surface", "block",
    "they", "them", "everything", "nothing", "something", "route", "action", "danger", "area", "exit",
)  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """The words of one world. `pairs` holds (kind, seen from kind); `symbols` what a character stands for.

    `fixed` names fields of the structured form that say nothing about the state (a size).
    """

    world: str
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()
    symbols: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    frame: Frame = "grid"
    anchor: str = "player"
    tolerance: float = 0.0
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: tuple[str, ...] = ("size", "grid_size")

    @cached_property
    def phrases(self) -> dict[tuple[str, ...], tuple[str, bool]]:
        """Words of a name, singular and plural -> its kind and whether it is the plural."""
        found: dict[tuple[str, ...], tuple[str, bool]] = {}
        for kind, names in {OTHER: _SCENERY, **self.names}.items():
            for name in names:
                words = tuple(name.split())
                if name not in _ALONE:
                    found[(*words[:-1], plural(words[-1]))] = (kind, True)
                found[words] = (kind, False)
        return found

    @cached_property
    def openings(self) -> frozenset[str]:
        """First words of names."""
        return frozenset(words[0] for words in self.phrases)

    @cached_property
    def longest(self) -> int:
        """Most words of one name."""
        return max(map(len, self.phrases), default=1)

    def kind_of(self, name: str) -> str | None:
        """The kind a key of a dictionary stands for: `box_positions` -> `box`."""
        words = words_of(name)
        while words and words[-1] in ("position", "positions", "coordinates", "coordinate", "location"):
            words = words[:-1]
        known = self.phrases.get(words)
        return None if known is None or known[0] == OTHER else known[0]

    def with_things(self, keys: Iterable[str]) -> Vocabulary:
        """This vocabulary and the things that a structured state names."""
        fresh = {key: words_of(key) for key in keys if self.kind_of(key) is None and words_of(key)}
        if not fresh:
            return self
        short = Counter(name for words in fresh.values() for name in self._short(words))
        added = {
            key: (
                " ".join(words),
                "".join(words),
                *self.also.get(" ".join(words), ()),
                *(name for name in self._short(words) if short[name] == 1 and (name,) not in self.phrases),
            )
            for key, words in fresh.items()
        }
        return replace(self, names={**self.names, **added})

    def _short(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """What a thing of several words may be called where that leaves no doubt."""
        first, last = words[0], words[-1]
        if len(words) == 1 or last == "can":  # a garbage can is no verb
            return ()
        return (last, first, f"{first} one", f"{first} block") if self.frame == "coordinates" else (last,)


def words_of(name: str) -> tuple[str, ...]:
    """The lower-case words of a key: `red_cube` and `RedCube` are two words."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[a-z]+|\d+", spaced.lower()))


def plural(word: str) -> str:
    """`boxes` of `box`."""
    return word + ("es" if word.endswith(("x", "s", "sh", "ch")) else "s")


FROZENLAKE = Vocabulary(
    "frozenlake",
    names={
        "player": (*_PLAYER, "elf"),
        "goal": ("goal", "target", "gift", "present", "flag", "destination", "finish", "treasure"),
        "hole": ("hole", "pit", "ice hole", "gap"),
    },
    pairs=(("goal", "player"), ("hole", "player")),
    symbols={
        "P": ("player",),
        "G": ("goal",),
        "O": ("hole",),
        "X": ("player", "hole"),
        "*": ("player", "goal"),
    },
)
SOKOBAN = Vocabulary(
    "sokoban",
    names={
        "player": (*_PLAYER, "worker", "keeper"),
        "box": ("box", "crate", "wooden box"),
        "target": ("target", "goal", "ring", "destination", "storage", "red ring", "target spot"),
    },
    pairs=(("box", "player"), ("target", "player"), ("target", "box")),
    symbols={
        "P": ("player",), "X": ("box",), "O": ("target",), "*": ("box", "target"), "S": ("player", "target"),
    },
)  # fmt: skip
NAVIGATION = Vocabulary(
    "navigation",
    names={"player": (*_PLAYER, "robot")},
    frame="bearing",
    tolerance=0.2,
    also={
        "sofa": ("couch", "settee"),
        "television": ("tv", "television set"),
        "fridge": ("refrigerator",),
        "plant": ("potted plant", "house plant"),
        "garbage can": ("trash can", "bin", "dustbin", "waste bin"),
        "bathtub": ("bath", "tub"),
    },
)
PRIMITIVE_SKILL = Vocabulary("primitive_skill", names={}, frame="coordinates", anchor="", tolerance=10.0)
VOCABULARIES = {known.world: known for known in (FROZENLAKE, SOKOBAN, NAVIGATION, PRIMITIVE_SKILL)}
