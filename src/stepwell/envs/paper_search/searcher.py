"""An oracle that knows all synonyms but not the answers.

Its next calls depend on the request, on earlier calls and on the papers in the observation, so an agent can
learn them. First come searches for the whole need, in the request's own words and then in all other forms.
After those, it expands listed papers, beginning with those that contain most of the request's words. It never
repeats a call.
"""

from __future__ import annotations

from itertools import product

from stepwell.envs.paper_search.library import Library, PaperRequest
from stepwell.envs.paper_search.papers import Selector
from stepwell.envs.paper_search.planner import Call
from stepwell.envs.paper_search.pool import PaperPool, normalise_query
from stepwell.envs.paper_search.text import order_papers


def choose_calls(library: Library, request: PaperRequest, selector: Selector, pool: PaperPool) -> list[Call]:
    """The calls of the next turn."""
    queries = [
        query for query in list_queries(library, request) if normalise_query(query) not in pool.queries
    ]
    new, old = order_papers(pool, selector)
    num_shown = library.limits.num_shown
    calls: list[Call] = [*queries, *new[:num_shown], *old[:num_shown]]
    return calls[: library.limits.max_calls]


def list_queries(library: Library, request: PaperRequest) -> list[str]:
    """Searches for the whole need in all its forms; the request's own words come first."""
    need, graph = request.need, library.graph
    if need is None:
        return [request.text]
    forms = [
        [said, *(form for form in graph.facets[facet].values[value] if form != said)]
        for (facet, value), said in zip(need.values, need.words(graph), strict=True)
    ]
    return [" ".join(words) for words in product(*forms)]
