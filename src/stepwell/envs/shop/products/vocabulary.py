"""The words a catalogue is made of: departments, kinds of things, attributes, options, sentences.

Two vocabularies ship, as TOML beside this file: `full`, as a department store would have it, and `tiny`,
of short words for small models. Reading one checks that its tables fit together.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from stepwell.core.errors import ConfigError
from stepwell.core.ids import hash_bytes

_FOLDER = Path(__file__).parent
_ARTICLES = ("a ", "an ")


@dataclass(frozen=True, slots=True)
class OptionSet:
    """Values one option draws from: between `pick[0]` and `pick[1]` of them.

    `is_run`: neighbours in the list, as sizes are. `surcharge`: by which part of the shelf price each
    step up the list costs more, between these two.
    """

    name: str
    values: tuple[str, ...]
    pick: tuple[int, int]
    is_run: bool = False
    surcharge: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ProductKind:
    """One kind of thing: prices in dollars, what can be chosen, what may be said of it.

    `rivals` are phrases of which only one can be true of a thing.
    """

    name: str
    category: tuple[str, ...]
    low: float
    high: float
    options: tuple[OptionSet, ...]
    is_phrases: tuple[str, ...]
    has_phrases: tuple[str, ...]
    rivals: tuple[frozenset[str], ...]
    lines: tuple[str, ...]

    @property
    def phrases(self) -> tuple[str, ...]:
        """What may be said of such a thing, with articles."""
        return self.is_phrases + self.has_phrases


@dataclass(frozen=True, slots=True)
class ProductVocabulary:
    """All the words, and a digest of them."""

    digest: str
    kinds: tuple[ProductKind, ...]
    brands: tuple[str, ...]
    models: tuple[str, ...]
    neutral: tuple[str, ...]
    is_sentences: tuple[str, ...]
    has_sentences: tuple[str, ...]
    attributes_per_product: tuple[int, int]
    title_attributes: tuple[int, int]
    has_texts: bool
    id_style: str


@lru_cache(maxsize=10_000)
def strip_article(phrase: str) -> str:
    """The attribute that a phrase names.

    >>> strip_article("a rubber sole"), strip_article("waterproof")
    ('rubber sole', 'waterproof')
    """
    return next((phrase[len(a) :] for a in _ARTICLES if phrase.startswith(a)), phrase)


@cache
def load_vocabulary(name: str) -> ProductVocabulary:
    """A vocabulary that ships: 'full' or 'tiny'."""
    path = _FOLDER / f"{name}.toml"
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in _FOLDER.glob("*.toml")))
        raise ConfigError(f"there is no vocabulary {name!r}; there are {known}")
    data = path.read_bytes()
    return read_vocabulary(tomllib.loads(data.decode()), hash_bytes(data))


def read_vocabulary(tables: dict[str, Any], digest: str) -> ProductVocabulary:
    """A vocabulary out of its tables."""
    sets = {
        name: OptionSet(
            table["name"],
            tuple(table["values"]),
            _read_pair(table["pick"]),
            bool(table.get("run", False)),
            _read_pair(table["surcharge"]) if "surcharge" in table else None,
        )
        for name, table in tables["options"].items()
    }
    return ProductVocabulary(
        digest,
        tuple(kind for table in tables["department"] for kind in _read_kinds(table, sets, tables["lines"])),
        tuple(head + tail for head in tables["name_heads"] for tail in tables["name_tails"]),
        tuple(tables["models"]),
        tuple(tables["neutral"]),
        tuple(tables["is_sentences"]),
        tuple(tables["has_sentences"]),
        _read_pair(tables["attributes_per_product"]),
        _read_pair(tables["title_attributes"]),
        bool(tables["texts"]),
        str(tables["id_style"]),
    )


def _read_kinds(table: dict[str, Any], sets: dict[str, OptionSet], lines: list[str]) -> list[ProductKind]:
    department = table["name"]
    group_of = {kind: group for group, kinds in table["groups"].items() for kind in kinds}
    rivals = tuple(frozenset(group) for group in table["rivals"])
    found = []
    for name, low, high, options in table["kinds"]:
        if name not in group_of or not set(options) <= set(sets):
            raise ConfigError(f"vocabulary: {department}: {name!r} has no group, or names unknown options")
        own = table.get("own", {}).get(group_of[name], {"is": [], "has": []})
        kind = ProductKind(
            name,
            (department, group_of[name], name),
            low,
            high,
            tuple(sets[option] for option in options),
            tuple(table["is"] + own["is"]),
            tuple(table["has"] + own["has"]),
            rivals,
            tuple(table.get("lines", lines)),
        )
        found.append(kind)
    return found


def _read_pair(values: list[Any]) -> Any:
    low, high = values
    return (low, high)
