"""Composes questions from a graph: bridges, comparisons and intersections, in several phrasings.

    bridge         start -> link -> ... -> value      "Which script is the main language of ... written in?"
    comparison     two starts -> link -> the one with more -> value
    intersection   two starts -> link -> what both lead to

A question is kept only if it contains neither its answer nor any name on the path. No answer belongs to more
than a certain share of all questions, so guessing does not pay. Each family of questions has its own seed, so
changing one family does not affect the others.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stepwell.envs.multihop_qa.facts.answers import normalise_answer
from stepwell.envs.multihop_qa.facts.collection import MultihopQuestion
from stepwell.envs.multihop_qa.facts.graph import FactGraph, Node, make_key

MIN_RATIO = 1.05  # compared numbers differ by at least 5%
Phrases = Mapping[str, tuple[str, ...]]  # relation -> phrasings, with {x} for its subject


@dataclass(frozen=True, slots=True)
class Bridge:
    """A path from a node of `kind` along `links` to `value`; at most `count` questions."""

    kind: str
    links: tuple[str, ...]
    value: str
    count: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two nodes of `kind`, their targets along `link`, the target with more of `number`, and its `value`."""

    kind: str
    link: str
    number: str
    value: str
    count: int


@dataclass(frozen=True, slots=True)
class Intersection:
    """Two nodes of `kind`, their targets along `link`, and the one thing that both have in `many`."""

    kind: str
    link: str
    many: str
    count: int


Family = Bridge | Comparison | Intersection


class Composer:
    """Builds the questions of a graph. `ask` phrases the question, `of` the path to its subject."""

    def __init__(self, graph: FactGraph, ask: Phrases, of: Phrases, compare: Phrases, both: Phrases) -> None:
        self.graph = graph
        self._ask, self._of, self._compare, self._both = ask, of, compare, both

    def compose_questions(self, families: Iterable[Family], max_per_answer: int) -> list[MultihopQuestion]:
        """The questions of all families; answers are counted over all of them."""
        num_by_answer: Counter[str] = Counter()
        found: dict[str, MultihopQuestion] = {}
        for family in families:
            rng = random.Random(repr(family))
            num_left = family.count
            for question in self._draw_questions(family, rng):
                answer = normalise_answer(question.answers[0])
                if question.text in found or num_by_answer[answer] >= max_per_answer:
                    continue
                found[question.text] = question
                num_by_answer[answer] += 1
                num_left -= 1
                if not num_left:
                    break
        return list(found.values())

    def _draw_questions(self, family: Family, rng: random.Random) -> Iterator[MultihopQuestion]:
        starts = [node for node in self.graph.list_kind(family.kind) if node.may_start]
        rng.shuffle(starts)
        pairs = (rng.sample(starts, 2) for _ in range(60 * family.count))
        made: Iterator[MultihopQuestion | None]
        match family:
            case Bridge():
                made = (self._make_bridge(family, start, rng) for start in starts)
            case Comparison():
                made = (self._make_comparison(family, one, other, rng) for one, other in pairs)
            case Intersection():
                made = (self._make_intersection(family, one, other, rng) for one, other in pairs)
        yield from (question for question in made if question is not None)

    def _make_bridge(self, family: Bridge, start: Node, rng: random.Random) -> MultihopQuestion | None:
        path = self.graph.follow_links(start, family.links)
        if path is None or family.value not in path[-1].values:
            return None
        what = start.name
        for link in family.links:
            what = rng.choice(self._of[link]).format(x=what)
        text = rng.choice(self._ask[family.value]).format(x=what)
        answer = path[-1].values[family.value]
        return _make_question("bridge", text, answer, [[node] for node in path])

    def _make_comparison(
        self, family: Comparison, one: Node, other: Node, rng: random.Random
    ) -> MultihopQuestion | None:
        ends = self._find_ends(family.link, one, other)
        if ends is None or any(family.number not in end.numbers for end in ends):
            return None
        less, more = sorted(ends, key=lambda end: end.numbers[family.number])
        if more.numbers[family.number] < MIN_RATIO * less.numbers[family.number]:
            return None
        if family.value not in more.values or more.values[family.value] == less.values.get(family.value):
            return None
        what = rng.choice(self._compare[f"{family.link}.{family.number}"]).format(x=one.name, y=other.name)
        text = rng.choice(self._ask[family.value]).format(x=what)
        return _make_question("comparison", text, more.values[family.value], [[one, other], [*ends]])

    def _make_intersection(
        self, family: Intersection, one: Node, other: Node, rng: random.Random
    ) -> MultihopQuestion | None:
        ends = self._find_ends(family.link, one, other)
        if ends is None:
            return None
        shared = set(ends[0].many.get(family.many, ())) & set(ends[1].many.get(family.many, ()))
        if len(shared) != 1:
            return None
        text = rng.choice(self._both[f"{family.link}.{family.many}"]).format(x=one.name, y=other.name)
        return _make_question("intersection", text, self.graph[shared.pop()].name, [[one, other], [*ends]])

    def _find_ends(self, link: str, one: Node, other: Node) -> tuple[Node, Node] | None:
        ends = [node.links.get(link) for node in (one, other)]
        if None in ends or ends[0] == ends[1] or {one.id, other.id} & set(ends):
            return None
        return self.graph[str(ends[0])], self.graph[str(ends[1])]


def _make_question(kind: str, text: str, answer: str, plan: list[list[Node]]) -> MultihopQuestion | None:
    """The question, unless it reveals its answer or a part of the path."""
    text = text[0].upper() + text[1:]
    said = f" {make_key(text)} "
    hidden = [answer, *(node.name for node in itertools.chain(*plan[1:]))]
    if any(f" {make_key(name)} " in said for name in hidden) or not normalise_answer(answer):
        return None
    ids = tuple(tuple(node.id for node in turn) for turn in plan)
    return MultihopQuestion(text, (answer,), ids, kind)
