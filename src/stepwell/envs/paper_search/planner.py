"""The oracle's plan: which calls of the next turn bring most of the answers that are still missing.

It knows the answers and chooses greedily, one call after another, the one that brings most answers which
neither the pool nor the calls before it hold, less half a point for each paper that the selector would
keep by mistake. It chooses among calls that an agent can think of:

* searches for the need's facets, all or all but one of them, each in a form that the request uses or that
  is in a title that the observation lists;
* expansions of papers that the observation lists.

Calls that are left over after the first turn go to expansions that lead to a neighbour of a missing answer.
Where there is nothing else to do, or no way to more than a third of the answers, it searches for titles of
missing papers, which no agent could know; when nothing is missing it goes on with what else scores. It never
makes a call twice, and every turn has a call while one is left.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from itertools import product

from stepwell.envs.paper_search.library import Library, PaperRequest
from stepwell.envs.paper_search.papers import Selector
from stepwell.envs.paper_search.pool import NUM_PAID, PaperPool, normalise_query
from stepwell.envs.paper_search.text import order_papers

MISTAKE = 0.5
HOPELESS = 1 / 3  # of the answers missing, and no way to them
NUM_LOOKED_AT = 20  # papers of the pool that are weighed when no answer is missing
Call = str | int  # a query, or the number of a paper to expand
Offers = Mapping[Call, Collection[int]]


class PaperPlanner:
    """The oracle of one episode."""

    def __init__(self, library: Library, request: PaperRequest, selector: Selector, pool: PaperPool) -> None:
        self._library, self._selector, self._pool = library, selector, pool
        self._answers = frozenset(request.answers)
        self._request = request
        new, old = order_papers(pool, selector)
        num_shown = library.limits.num_shown
        self._listed = frozenset(new[:num_shown] + old[:num_shown])

    def choose_calls(self) -> list[Call]:
        """The calls of the next turn."""
        missing = self._answers.difference(self._pool.papers)
        queries = [query for query in self._list_queries() if self._is_fresh(query)]
        searches: Offers = {query: self._library.search(query) for query in queries}
        plan, missing = self._choose_greedily({**searches, **self._list_expansions(missing)}, missing)
        if missing and self._pool.papers:
            plan, missing = self._choose_greedily(self._list_detours(missing, plan), missing, plan)
        if self._pool.papers and (not plan or len(missing) > HOPELESS * len(self._answers)):
            plan, _ = self._choose_greedily(self._list_title_searches(missing), missing, plan)
        return plan or self._choose_leftover(searches)

    def _list_queries(self) -> list[str]:
        """Searches for the request: in its own words first, then in all words met so far."""
        need, graph = self._request.need, self._library.graph
        if need is None:
            return [self._request.text]
        met = "".join(f" {graph.titles[paper].lower()} " for paper in self._listed)
        known = []
        for (facet, value), said in zip(need.values, need.words(graph), strict=True):
            forms = graph.facets[facet].values[value]
            known.append([said, *(form for form in forms if form != said and form.lower() in met)])
        queries = [" ".join(forms) for forms in product(*known)]
        for left_out in range(len(known)):
            queries += [" ".join(forms) for forms in product(*known[:left_out], *known[left_out + 1 :])]
        return queries

    def _choose_greedily(
        self, offers: Offers, missing: frozenset[int], plan: Sequence[Call] = ()
    ) -> tuple[list[Call], frozenset[int]]:
        """`plan` with more calls, each by what it adds to those before it; and what they leave missing."""
        plan = list(plan)
        mistakes = {call: self._count_mistakes(found) for call, found in offers.items()}
        while missing and offers and self._num_left(plan):
            gains = {
                call: len(missing.intersection(found)) - mistakes[call] for call, found in offers.items()
            }
            best = max(gains, key=lambda call: gains[call])  # of equal ones the first
            if gains[best] <= 0:
                break
            plan.append(best)
            missing = missing.difference(offers[best])
        return plan, missing

    def _list_expansions(self, missing: frozenset[int]) -> dict[Call, Collection[int]]:
        """Expansions of the pool that bring a missing answer."""
        library, place = self._library, self._pool.papers.__getitem__
        near = {
            paper for answer in missing for paper in library.list_neighbours(answer) if self._is_fresh(paper)
        }
        found = ((paper, library.expand(paper)) for paper in sorted(near, key=place))
        return {paper: row for paper, row in found if not missing.isdisjoint(row)}

    def _list_detours(self, missing: Collection[int], plan: Collection[Call]) -> Offers:
        """Expansions that bring a paper whose own expansion brings a missing answer: half the way counts."""
        library = self._library
        ways: dict[Call, set[int]] = {}
        for answer in sorted(missing):
            for between in library.list_neighbours(answer):
                if between in self._pool.papers or not self._selector.score(between):
                    continue
                if answer not in library.expand(between):
                    continue
                for paper in library.list_neighbours(between):
                    if self._is_fresh(paper) and paper not in plan and between in library.expand(paper):
                        ways.setdefault(paper, set()).add(answer)
        return ways

    def _list_title_searches(self, missing: Collection[int]) -> Offers:
        """Searches for the titles of missing answers."""
        titles = (self._library.graph.titles[paper] for paper in sorted(missing))
        return {title: self._library.search(title) for title in titles if self._is_fresh(title)}

    def _choose_leftover(self, searches: Offers) -> list[Call]:
        """The one call that pays best."""
        fresh = [paper for paper in self._pool.papers if self._is_fresh(paper)]
        likely = heapq.nlargest(NUM_LOOKED_AT, fresh, key=self._selector.score)
        offers: dict[Call, Collection[int]] = dict(searches)
        offers.update((paper, self._library.expand(paper)) for paper in likely)
        pays = {call: self._estimate_pay(found) for call, found in offers.items()}
        return [max(pays, key=lambda call: pays[call])] if pays else []

    def _estimate_pay(self, found: Collection[int]) -> float:
        new = (self._selector.score(paper) for paper in found if paper not in self._pool.papers)
        return sum(heapq.nlargest(NUM_PAID, new)) - self._count_mistakes(found)

    def _count_mistakes(self, found: Collection[int]) -> float:
        keeps, known = self._selector.is_kept, self._pool.papers
        return MISTAKE * sum(p not in known and p not in self._answers and keeps(p) for p in found)

    def _is_fresh(self, call: Call) -> bool:
        """Whether a call is valid in the next turn and was not made before."""
        if isinstance(call, str):
            return normalise_query(call) not in self._pool.queries
        return call in self._listed

    def _num_left(self, plan: Collection[Call]) -> int:
        return self._library.limits.max_calls - len(plan)
