"""Codes: a small collection of made-up names, for tiny models that know no language.

Every thing is a code of three characters that leads to three others. Capitals and digits are always one token
each in the tiny models' vocabulary, and so is every other word. A search or an answer therefore only needs
copying a code:

    passage      KQ7: key AB1 door CD2 cup EF3 size 4
    bridge       What cup of door of KQ7?      search KQ7, search CD2, answer its cup
    comparison   What key of KQ7 or AB1?       search both at once, answer the key of the one with more size

There are far more things than a tiny model can memorise in a short training, so it has to search. `marks` is
a second such collection for testing transfer: codes of another form, other passages, its own index, one new
relation and another number. Two relations are shared, because an unknown word means nothing to a tiny model.
"""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepwell.envs.multihop_qa.facts.collection import Collection, MultihopQuestion
from stepwell.envs.multihop_qa.facts.graph import FactGraph, Node

NUM_THINGS = 2_000
NUM_QUESTIONS = {"bridge 2": 6_000, "bridge 3": 4_000, "comparison": 2_000}
DIGITS = string.digits
LETTERS = string.ascii_uppercase


@dataclass(frozen=True, slots=True)
class CodeLanguage:
    """The language of a small collection: the form of names, the relations, and the compared number."""

    name: str
    letters: tuple[str, ...]
    relations: tuple[str, str, str]
    number: str


CODES = CodeLanguage("codes", (LETTERS, LETTERS, DIGITS), ("key", "door", "cup"), "size")
MARKS = CodeLanguage("marks", (DIGITS, LETTERS, LETTERS), ("cup", "lamp", "door"), "price")


def digest_inputs() -> list[str]:
    """Inputs of the collection: nothing outside this file."""
    return []


def build_codes() -> Collection:
    """The collection for training."""
    return _build_collection(CODES)


def build_marks() -> Collection:
    """The collection for transfer."""
    return _build_collection(MARKS)


def _build_collection(tongue: CodeLanguage) -> Collection:
    rng = random.Random(tongue.name)
    graph = FactGraph(_make_things(tongue, rng))
    things = list(graph.nodes.values())
    makers = {"bridge 2": _make_bridge, "bridge 3": _make_bridge, "comparison": _make_comparison}
    questions: dict[str, MultihopQuestion] = {}
    for kind, count in NUM_QUESTIONS.items():
        wanted = len(questions) + count
        while len(questions) < wanted:
            question = makers[kind](graph, things, tongue, kind, rng)
            if question is not None:
                questions.setdefault(question.text, question)
    return Collection(tongue.name, graph.documents(), questions.values())


def _make_things(tongue: CodeLanguage, rng: random.Random) -> Iterator[Node]:
    names = rng.sample(["".join(code) for code in itertools.product(*tongue.letters)], NUM_THINGS)
    for name in names:
        to = rng.sample([other for other in rng.sample(names, 8) if other != name], len(tongue.relations))
        links = dict(zip(tongue.relations, to, strict=True))
        number = rng.randint(0, 9)
        said = " ".join(f"{relation} {other}" for relation, other in links.items())
        text = f"{said} {tongue.number} {number}"
        yield Node(name, "thing", name, name, text, dict(links), {tongue.number: number}, links)


def _make_bridge(
    graph: FactGraph, things: Sequence[Node], tongue: CodeLanguage, kind: str, rng: random.Random
) -> MultihopQuestion | None:
    *links, last = rng.choices(tongue.relations, k=int(kind.split()[1]))
    path = graph.follow_links(rng.choice(things), links)
    if path is None or path[-1].links[last] in [node.id for node in path]:
        return None
    asked = " of ".join(reversed([*links, last]))
    plan = tuple((node.id,) for node in path)
    return MultihopQuestion(f"What {asked} of {path[0].name}?", (path[-1].links[last],), plan, "bridge")


def _make_comparison(
    graph: FactGraph, things: Sequence[Node], tongue: CodeLanguage, kind: str, rng: random.Random
) -> MultihopQuestion | None:
    one, other = rng.sample(things, 2)
    less, more = sorted((one, other), key=lambda node: node.numbers[tongue.number])
    relation = rng.choice(tongue.relations)
    answer = more.links[relation]
    if more.numbers == less.numbers or answer in (one.id, other.id, less.links[relation]):
        return None
    text = f"What {relation} of {one.name} or {other.name}?"
    return MultihopQuestion(text, (answer,), ((one.id, other.id),), kind)
