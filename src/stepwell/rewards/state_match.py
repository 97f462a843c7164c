"""Match an agent's description of a state with the true state, by rules without a model.

    symbolic          share of equal cells; 0 if the grid has another shape
    structured        F1 over pairs of a key and a position
    natural_language  F1 over relations: (thing, direction, other thing)

A natural-language state is a list of sentences. Each says where one thing is relative to
another: "The target is directly above the player", or "The target is above and at the same
column as the player", which means the same. Every direction in it is one relation, and "The
player is below the target" means the same as "The target is above the player". Text that no
rule understands is not a relation, neither right nor wrong. A truth without any relation is
compared word by word.

Invariants: the truth scores 1; every score is in [0, 1]; any text is accepted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Set
from functools import lru_cache

from stepwell.core.env_description import StateForm

_Relation = tuple[str, str, str]


def match_state(form: StateForm, claim: str, truth: str) -> float:
    """The match of `claim` and `truth`, both in `form`, from 0 to 1."""
    if form == StateForm.SYMBOLIC:
        return match_grids(claim, truth)
    if form == StateForm.STRUCTURED:
        return (
            compute_f1(parse_positions(claim), parse_positions(truth))
            if parse_positions(truth)
            else compute_f1(_list_tokens(claim), _list_tokens(truth))
        )
    return (
        compute_f1(parse_relations(claim), parse_relations(truth))
        if parse_relations(truth)
        else compute_f1(_list_tokens(claim), _list_tokens(truth))
    )


def match_grids(claim: str, truth: str) -> float:
    """The share of equal cells; blanks between cells and around the grid are ignored."""
    cells, true_cells = split_rows(claim), split_rows(truth)
    if [len(row) for row in cells] != [len(row) for row in true_cells]:
        return 0.0
    pairs = [pair for rows in zip(cells, true_cells, strict=True) for pair in zip(*rows, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 1.0


def compute_f1(claim: Set[Hashable], truth: Set[Hashable]) -> float:
    """Harmonic mean of the share of `claim` that is true and the share of the truth that it states."""
    if not claim and not truth:
        return 1.0
    return 2 * len(claim & truth) / (len(claim) + len(truth))


# ---- structured ------------------------------------------------------------------------------

_KEY = re.compile(r"""["']?([A-Za-z]\w*)["']?\s*[:=]""")
_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_TUPLE = re.compile(rf"[(\[]\s*({_NUMBER}(?:\s*,\s*{_NUMBER})*)\s*,?\s*[)\]]")


@lru_cache(maxsize=4096)
def parse_positions(text: str) -> frozenset[tuple[str, Hashable]]:
    """Pairs of a key and a position, read from anything like a dictionary.

    >>> sorted(parse_positions("{player_position: (1, 2), 'holes': [[0, 3], [2, 2]]}"))
    [('holes', (0.0, 3.0)), ('holes', (2.0, 2.0)), ('player', (1.0, 2.0))]
    """
    found: set[tuple[str, Hashable]] = set()
    keys = list(_KEY.finditer(text))
    ends = [*(key.start() for key in keys), len(text)][1:]
    for key, end in zip(keys, ends, strict=True):
        value = text[key.end() : end]
        name = re.sub(r"_?positions?$", "", key[1].lower()) or key[1].lower()
        tuples: list[Hashable] = [
            tuple(map(float, re.findall(_NUMBER, inside))) for inside in _TUPLE.findall(value)
        ]
        plain = " ".join(re.findall(r"[\w.+-]+", value.lower()))
        found.update((name, position) for position in tuples or (plain,))
    return frozenset(found)


# ---- natural language ------------------------------------------------------------------------

_SAME_ROW, _SAME_COLUMN = "same row", "same column"
_OPPOSITE = {"above": "below", "below": "above", "left": "right", "right": "left"}
_DIRECTIONS = {
    **dict.fromkeys(("above", "up", "north", "over", "upper", "higher", "top"), "above"),
    **dict.fromkeys(("below", "down", "south", "under", "beneath", "lower", "bottom"), "below"),
    **dict.fromkeys(("left", "west"), "left"),
    **dict.fromkeys(("right", "east"), "right"),
}
_SAME = {
    **dict.fromkeys(("row", "line", "height"), (_SAME_ROW,)),
    "column": (_SAME_COLUMN,),
    **dict.fromkeys(("place", "position", "cell", "tile", "spot", "location"), (_SAME_ROW, _SAME_COLUMN)),
}
_STRAIGHT = {"directly", "straight", "exactly"}
_NAMES = {"i": "player", "me": "player", "you": "player", "agent": "player", "goal": "target"}
_PLAIN = "a an and also as at be by directly exactly from in is it just of on one same side standing "
_FILLERS = frozenset(re.findall(r"\w+", _PLAIN + "step steps straight that the to two three which with"))
_COPULA = re.compile(r"\b(?:is|are|am|will be|was|be)\b")
_END = re.compile(
    r"[.;!?\n]|,(?=[^,.;!?\n]*\b(?:is|are|am|will be)\b)"
    r"|\band (?=(?:the )?\w+(?: \w+)? (?:is|are|am|will be)\b)"
)


@lru_cache(maxsize=4096)
def parse_relations(text: str) -> frozenset[_Relation]:
    """All relations in a text, with the things in alphabetical order.

    >>> sorted(parse_relations("The target is directly above the player."))
    [('player', 'below', 'target'), ('player', 'same column', 'target')]
    """
    found: set[_Relation] = set()
    for sentence in _END.split(text.lower()):
        found.update(_parse_sentence(sentence))
    return frozenset(found)


def _parse_sentence(sentence: str) -> set[_Relation]:
    copula = _COPULA.search(sentence)
    if copula is None:
        return set()
    thing = _find_thing(_split_words(sentence[: copula.start()]))
    directions, rest = _split_directions(_split_words(sentence[copula.end() :]))
    other = _find_thing(rest)
    if not thing or not other or thing == other:
        return set()
    return {_order_relation(thing, direction, other) for direction in directions}


def _split_directions(words: list[str]) -> tuple[set[str], list[str]]:
    """The directions among the words, and the other words."""
    directions: set[str] = set()
    rest: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if word in _DIRECTIONS:
            directions.add(_DIRECTIONS[word])
        elif before == "same" and word in _SAME:
            directions.update(_SAME[word])
        else:
            rest.append(word)
    if len(directions) == 1 and _STRAIGHT & set(words):
        directions.add(_SAME_COLUMN if directions & {"above", "below"} else _SAME_ROW)
    if not directions and words[:1] == ["on"]:  # "on the target" and no direction: the same place
        directions.update((_SAME_ROW, _SAME_COLUMN))
    return directions, rest


def _order_relation(thing: str, direction: str, other: str) -> _Relation:
    if thing < other:
        return thing, direction, other
    return other, _OPPOSITE.get(direction, direction), thing


def _find_thing(words: list[str]) -> str:
    """The name of a thing: "the Hole 1" and "hole1" are one, and a count before it is not part of it."""
    named = [_NAMES.get(word, word) for word in words if word not in _FILLERS]
    return " ".join(itertools.dropwhile(str.isdigit, named))


def _split_words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+", text)


# ---- shared ----------------------------------------------------------------------------------


def split_rows(text: str) -> list[str]:
    """The rows of a drawn grid, without blanks; empty lines do not count."""
    rows = ("".join(line.split()) for line in text.splitlines())
    return [row for row in rows if row]


def _list_tokens(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+|[^\w\s]", text.lower()))
