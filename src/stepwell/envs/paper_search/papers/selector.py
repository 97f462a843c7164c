"""The selector: how relevant a paper is to a request, from 0 to 1. Agents cannot call it.

For a need of a generated graph, the score of a paper is

    product over the need's facets of (1 if it is about the value, 0.55 if it mentions it, 0.25 if neither)
    times (0.75 + 0.25 * share of the request's words in its title or abstract)

Scores below 0.1 are set to 0. A paper that answers the need thus scores at least 0.75, whatever its wording.
A paper that misses one facet scores at most 0.55. It passes the threshold of 0.5 only if it mentions that
facet and uses the request's words; these are the selector's mistakes, like those of a reading judge. A paper
that misses two facets scores near zero. Without facets (papers of a snapshot), the first factor is 1 for an
annotated paper, and 0.45 times that share of words for any other.

The words of a request are those of its facets' forms, or all its words of more than three letters.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from stepwell.envs.paper_search.papers.graph import PaperGraph
from stepwell.envs.paper_search.papers.needs import FacetRequirement
from stepwell.envs.retrieval.text import split_words

MENTIONED, ABSENT, UNANNOTATED = 0.55, 0.25, 0.45
WORDLESS = 0.75
NEAR_ZERO = 0.1
THRESHOLD = 0.5


class Quality(NamedTuple):
    """The quality of a pool, after the threshold."""

    f1: float = 0.0
    recall: float = 0.0
    precision: float = 0.0


class Selector:
    """Scores of papers for one request, computed on demand and cached."""

    def __init__(
        self, graph: PaperGraph, request: str, answers: Collection[int], need: FacetRequirement | None = None
    ) -> None:
        self._graph, self._need, self._answers = graph, need, frozenset(answers)
        said = (
            split_words(" ".join(need.words(graph)))
            if need
            else [w for w in split_words(request) if len(w) > 3]
        )
        self._words = frozenset(said)
        self._scores: dict[int, float] = {}
        self._shares: dict[int, float] = {}

    def score(self, paper: int) -> float:
        """The relevance of a paper."""
        score = self._scores.get(paper)
        if score is None:
            score = self._score_fit(paper)
            if score >= NEAR_ZERO:  # below that, the words cannot change the result
                score *= WORDLESS + (1 - WORDLESS) * self.measure_word_share(paper)
            score = self._scores[paper] = score if score >= NEAR_ZERO else 0.0
        return score

    def is_kept(self, paper: int) -> bool:
        """Whether a paper passes the threshold."""
        return self.score(paper) >= THRESHOLD

    def list_mistakes(self) -> list[int]:
        """The papers of the graph that pass the threshold but are not answers."""
        return [
            paper for paper in self._list_near_answers() if paper not in self._answers and self.is_kept(paper)
        ]

    def compute_ceiling(self) -> float:
        """F1 of a pool with all papers of the graph."""
        count = len(self._answers)
        return 2 * count / (2 * count + len(self.list_mistakes())) if count else 0.0

    def measure_word_share(self, paper: int) -> float:
        """The share of the request's words in a paper's title or abstract."""
        share = self._shares.get(paper)
        if share is None:
            held = self._words.intersection(split_words(self._graph.texts[paper]))
            share = self._shares[paper] = len(held) / len(self._words) if self._words else 0.0
        return share

    def _list_near_answers(self) -> list[int]:
        """Papers that mention one facet of the need and are about the others; only these can be mistaken."""
        about, mentions = self._graph.about, self._graph.mentions
        if self._need is None or about is None or mentions is None:
            return []
        is_about = [about[:, facet] == value for facet, value in self._need.values]
        found: set[int] = set()
        for place, (facet, value) in enumerate(self._need.values):
            others = [hit for k, hit in enumerate(is_about) if k != place]
            found.update(np.flatnonzero(np.all([mentions[:, facet] == value, *others], axis=0)).tolist())
        return sorted(found)

    def _score_fit(self, paper: int) -> float:
        if self._need is None:
            return 1.0 if paper in self._answers else UNANNOTATED * self.measure_word_share(paper)
        about, mentions = self._graph.about, self._graph.mentions
        assert about is not None and mentions is not None
        fit = 1.0
        for facet, value in self._need.values:
            if about[paper, facet] != value:
                fit *= MENTIONED if mentions[paper, facet] == value else ABSENT
        return fit


def measure_quality(selector: Selector, pool: Collection[int], answers: Collection[int]) -> Quality:
    """The quality of a pool: the papers that the selector keeps, compared with the answers.

    With three of four answers kept and one wrong paper: recall 0.75, precision 0.75, F1 0.75.
    """
    kept = {paper for paper in pool if selector.is_kept(paper)}
    found = len(kept.intersection(answers))
    recall = found / len(answers) if answers else 0.0
    precision = found / len(kept) if kept else 0.0
    f1 = 2 * precision * recall / (precision + recall) if found else 0.0
    return Quality(f1, recall, precision)
