"""The pool of one episode: what was found, what was asked, and what each turn earned.

A turn earns the sum of the three highest scores among papers that are new in it, whichever of its calls
found them, less the penalty for every query asked before, every expansion made before, and every expansion
of a paper that was not in the pool when the turn began (calls of one turn are parallel: none can build on
another). Papers that the selector scores 0 are dropped: they neither enter the pool nor count.

The rewards of a turn's calls add up to the reward of the turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from stepwell.envs.paper_search.papers import Selector

NUM_PAID = 3


def normalise_query(query: str) -> str:
    """A query as it is compared with others: case and blanks make no difference."""
    return " ".join(query.casefold().split())


class PaperPool:
    """Papers by number, in the order in which they were found. `replies` tells what the last calls did,
    `problems` what of them could not be done."""

    def __init__(self, selector: Selector, penalty: float) -> None:
        self.papers: dict[int, int] = {}  # paper -> its place
        self.expanded: set[int] = set()
        self.queries: set[str] = set()
        self.num_penalties = 0
        self._selector, self._penalty = selector, penalty
        self.begin_turn()

    def begin_turn(self) -> None:
        """What is found from here on is new in this turn."""
        self.num_before = len(self.papers)
        self.replies: list[str] = []
        self.problems: list[str] = []
        self._paid: list[float] = []

    @property
    def new(self) -> list[int]:
        """Papers that the last turn added."""
        return list(self.papers)[self.num_before :]

    @property
    def old(self) -> list[int]:
        """Papers of earlier turns that were not expanded."""
        return [paper for paper in list(self.papers)[: self.num_before] if paper not in self.expanded]

    def was_there(self, paper: int) -> bool:
        """Whether a paper was in the pool when the turn began."""
        return self.papers.get(paper, self.num_before) < self.num_before

    def add_found(self, found: Iterable[int], told: str) -> float:
        """Take in what a call found; its reward."""
        num_found = num_new = num_dropped = 0
        before = sum(self._paid)
        for paper in found:
            num_found += 1
            score = self._selector.score(paper)
            if score == 0.0:
                num_dropped += 1
            elif paper not in self.papers:
                self.papers[paper] = len(self.papers)
                num_new += 1
                self._paid = heapq.nlargest(NUM_PAID, [*self._paid, score])
        dropped = f", {num_dropped} dropped" if num_dropped else ""
        self.replies.append(f"{told}: {num_found} found, {num_new} new{dropped}")
        return sum(self._paid) - before

    def refuse_call(self, told: str, *, is_penalised: bool) -> float:
        """A call that does nothing; its reward."""
        self.replies.append(told)
        self.problems.append(told)
        self.num_penalties += is_penalised
        return -self._penalty if is_penalised else 0.0
