"""The pool of one episode: papers found, calls made, and rewards of turns.

The reward of a turn is the sum of the three highest scores among its new papers, whichever call found them. A
penalty is subtracted for every repeated query, every repeated expansion, and every expansion of a paper that
was not in the pool when the turn began (calls of one turn are parallel, so none can depend on another).
Papers with score 0 are dropped: they neither enter the pool nor count.

The rewards of a turn's calls add up to the reward of the turn.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from stepwell.envs.paper_search.papers import Selector

NUM_PAID = 3


def normalise_query(query: str) -> str:
    """Normalise a query for comparisons: case and spaces do not matter."""
    return " ".join(query.casefold().split())


class PaperPool:
    """Papers by number, in the order of finding. `replies` are the results of the last calls, `problems`
    their failures."""

    def __init__(self, selector: Selector, penalty: float) -> None:
        self.papers: dict[int, int] = {}  # paper -> its place
        self.expanded: set[int] = set()
        self.queries: set[str] = set()
        self.num_penalties = 0
        self._selector, self._penalty = selector, penalty
        self.begin_turn()

    def begin_turn(self) -> None:
        """Start a turn: papers found from now on are new."""
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

    def add_found(self, found: Iterable[int], reply: str) -> float:
        """Add the papers that a call found; returns its reward."""
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
        self.replies.append(f"{reply}: {num_found} found, {num_new} new{dropped}")
        return sum(self._paid) - before

    def refuse_call(self, reply: str, *, is_penalised: bool) -> float:
        """Record a call that does nothing; returns its reward."""
        self.replies.append(reply)
        self.problems.append(reply)
        self.num_penalties += is_penalised
        return -self._penalty if is_penalised else 0.0
