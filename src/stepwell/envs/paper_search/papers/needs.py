"""Information needs over a generated graph: their facets, their requests and their answers.

A need is a set of facet values, with or without the domain. A paper answers it if it is about all of them (a
mention is not enough). The request uses one form of each value, which depends only on the need. The same need
therefore always has the same request, and different tasks have different answers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from stepwell.core.errors import InputError
from stepwell.envs.paper_search.papers.graph import PaperGraph

REQUESTS = (
    "Which papers study {}?",
    "I am looking for work on {}.",
    "Collect the literature on {}.",
    "Find research about {}.",
    "What has been published on {}?",
    "Papers about {}, please.",
)
JOINTS = {
    "domain": "{}",
    "task": "{}",
    "method": "methods based on {}",
    "setting": "{}",
    "dataset": "{} data",
}


@dataclass(frozen=True, slots=True)
class FacetRequirement:
    """Facet values that an answer must have: pairs of facet number and value number, in order."""

    values: tuple[tuple[int, int], ...]

    def answers(self, graph: PaperGraph) -> list[int]:
        """The papers that are about all values, oldest first."""
        assert graph.about is not None
        hit = np.ones(len(graph), bool)
        for facet, value in self.values:
            hit &= graph.about[:, facet] == value
        return np.flatnonzero(hit).tolist()

    def words(self, graph: PaperGraph) -> list[str]:
        """The form of each value in the request."""
        rng = random.Random(f"words of {self.values}")
        return [rng.choice(graph.facets[facet].values[value]) for facet, value in self.values]


def list_needs(
    graph: PaperGraph, sizes: tuple[int, ...], min_answers: int, max_answers: int
) -> list[FacetRequirement]:
    """All needs with these numbers of facets (`sizes`) and a suitable number of answers, in a fixed order."""
    assert graph.about is not None, "needs are those of a generated graph"
    found = []
    for kinds in _list_kinds(len(graph.facets), sizes):
        rows = graph.about[:, kinds]
        counts = Counter(map(tuple, rows[(rows >= 0).all(axis=1)].tolist()))
        fitting = sorted(key for key, count in counts.items() if min_answers <= count <= max_answers)
        found += [FacetRequirement(tuple(zip(kinds, key, strict=True))) for key in fitting]
    return found


def read_need(value: Any, graph: PaperGraph) -> FacetRequirement:
    """Read a need from the pairs of numbers in a task."""
    sizes = [len(facet.values) for facet in graph.facets]
    pairs = value if isinstance(value, list | tuple) else ()
    is_good = bool(pairs) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 and all(type(number) is int for number in pair)
        for pair in pairs
    )
    if not is_good or not all(0 <= f < len(sizes) and 0 <= v < sizes[f] for f, v in pairs):
        raise InputError("a need is a list of pairs [facet, value], both numbers that the graph has")
    return FacetRequirement(tuple((facet, number) for facet, number in pairs))


def write_request(graph: PaperGraph, need: FacetRequirement, is_short: bool = False) -> str:
    """The text of the request; with `is_short`, only the words of the facets."""
    said = need.words(graph)
    if is_short:
        return " ".join(said)
    rng = random.Random(f"request of {need.values}")
    named = [
        JOINTS[graph.facets[facet].name].format(form)
        for (facet, _), form in zip(need.values, said, strict=True)
    ]
    rng.shuffle(named)
    return rng.choice(REQUESTS).format(", ".join(named[:-1]) + " and " + named[-1])


def _list_kinds(num_facets: int, sizes: tuple[int, ...]) -> Iterator[list[int]]:
    for size in sizes:
        yield from (list(kinds) for kinds in combinations(range(num_facets), size))
