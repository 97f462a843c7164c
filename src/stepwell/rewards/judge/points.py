"""Claims about coordinates: the things of a text and their points.

    the red cube is at (1, 2, 3), the green one at (4, 5, 6)     a thing, then its point
    at (1, 2, 3) there is the red cube                           a point, then what is there
    red: x=1, y=2, z=3                                           a point in words
    the apple is in the drawer at (1, 2, 3)                      the point of the apple, the subject

A sentence is read from left to right. A point belongs to the thing before it that has none yet, or else
to the next one. Things joined by "and" before one point are all there. A sentence with a doubt, a
question or a condition claims nothing. After a denial, points claim nothing, up to the next thing. "from
(1, 2, 3)" says where something was, unless it "has not moved" from there. A coloured thing that the
environment does not have is also a thing, of an unknown kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stepwell.core.state_vocabulary import OTHER, StateVocabulary
from stepwell.rewards.judge.claims import PlaceClaim
from stepwell.rewards.judge.items import Mention
from stepwell.rewards.judge.lexicon import COPULAS, MAYBE, NOT

_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_POINT = rf"[(\[] ?{_NUMBER}(?: ?, ?{_NUMBER})+ ?[)\]]"
_AXES = re.compile(
    rf"\bx ?[=:]? ?({_NUMBER}) ?(?:,|and)* ?y ?[=:]? ?({_NUMBER}) ?(?:,|and)* ?z ?[=:]? ?({_NUMBER})"
)
_TOKEN = re.compile(rf"{_POINT}|[a-z]+(?:'[a-z]+)?|[.,;!?\n]")
_COLOURS = frozenset(
    ("red", "green", "blue", "yellow", "purple", "orange", "black", "white", "pink", "brown", "grey", "gray")
)
_UNSURE = MAYBE | {"suppose", "guess", "order"}
_STILL = frozenset({"moved", "move", "moves", "changed", "budged", "shifted"})
_FOREIGN = "a thing that is not there"


@dataclass(slots=True)
class _Sentence:
    """The state of a sentence: things without a point yet, or a point without a thing."""

    things: list[Mention] = field(default_factory=list)
    point: tuple[float, ...] | None = None
    has_and: bool = False  # "and" after the last thing
    is_denied: bool = False
    is_past: bool = False  # "from": where something used to be
    is_unmoved: bool = False
    claims: list[PlaceClaim] = field(default_factory=list)

    def add_thing(self, mention: Mention) -> None:
        if self.point is not None:
            self._add_claims([mention], self.point)
            self.point = None
            return
        if not self.things:
            self.is_denied = self.is_unmoved = False
            self.things = [mention]
        elif self.has_and:
            self.things.append(mention)

    def add_place(self, values: tuple[float, ...]) -> None:
        if self.is_past and not self.is_unmoved:
            self.is_past = False
            return
        if not self.things:
            self.point = values
            return
        if not self.is_denied or self.is_unmoved:
            self._add_claims(self.things, values)
        self.things, self.is_past, self.has_and = [], False, False

    def add_word(self, word: str) -> None:
        if word in NOT or word.endswith("n't"):
            self.is_denied = True
        elif word in _STILL:
            self.is_unmoved = self.is_denied
        elif word == "from":
            self.is_past = True
        elif word == "to":
            self.is_past = False
        elif word == "and":
            self.has_and = True
        elif word == ",":
            self.has_and = bool(self.things)  # a list of things may go on
        elif word in COPULAS:
            self.has_and = False

    def _add_claims(self, things: list[Mention], values: tuple[float, ...]) -> None:
        self.claims += [
            PlaceClaim(thing, tuple(enumerate(values))) for thing in things if thing.kind != OTHER
        ]


def parse_place_claims(text: str, vocabulary: StateVocabulary) -> list[PlaceClaim]:
    """All claims of a text that a thing is at a point, in order."""
    plain = text.lower().replace("\u2212", "-").replace("\u2019", "'").replace("_", " ")
    plain = re.sub(r"[^\S\n]+", " ", _AXES.sub(r"(\1, \2, \3)", plain))
    claims: list[PlaceClaim] = []
    sentence, is_sure = _Sentence(), True
    tokens = [*_TOKEN.findall(re.sub(r",\s*\n", ", ", plain)), "."]
    at = 0
    while at < len(tokens):
        token = tokens[at]
        size, kind = _find_name(tokens, at, vocabulary)
        at += size or 1
        if token in ".;!?\n":
            claims += sentence.claims if is_sure and token != "?" else []
            sentence, is_sure = _Sentence(), True
        elif kind is not None:
            sentence.add_thing(Mention(kind, serial=at))
        elif token[0] in "([":
            sentence.add_place(tuple(map(float, re.findall(_NUMBER, token))))
        else:
            is_sure &= token not in _UNSURE
            sentence.add_word(token)
    return claims


def _find_name(tokens: list[str], at: int, vocabulary: StateVocabulary) -> tuple[int, str | None]:
    """The number of tokens that name a thing here, and its kind; 0 and None if there is no name."""
    for size in range(min(vocabulary.max_words, len(tokens) - at), 0, -1):
        words = tuple(word.removesuffix("'s") for word in tokens[at : at + size])
        known = vocabulary.phrases.get(words)
        if known is not None and known[0] != OTHER:
            return size, None if known[1] else known[0]
    if tokens[at] in _COLOURS and at + 1 < len(tokens) and tokens[at + 1].isalpha():
        return 2, _FOREIGN
    return 0, None
