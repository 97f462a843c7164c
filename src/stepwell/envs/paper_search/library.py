"""The library: a citation graph with its search index and its requests, shared by all episodes.

It never changes once made, so a process makes one per setting (`open_library`) and copies of an environment
share it. Results of searches are kept: many episodes ask for the same words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Self

from stepwell.core.errors import ConfigError
from stepwell.envs.paper_search.options import PaperLimits, PaperSearchOptions
from stepwell.envs.paper_search.papers import (
    FacetRequirement,
    GraphSpec,
    PaperGraph,
    Selector,
    list_needs,
    open_generated_graph,
    write_request,
)
from stepwell.envs.paper_search.papers.semantic_scholar import read_requests, read_snapshot
from stepwell.envs.retrieval import Document, IndexKind, SearchIndex

NEED_SIZES = (2, 3)  # facets of a need
MIN_CEILING = 0.85  # requests that the selector cannot judge better than this make no tasks
KEPT_SEARCHES = 20_000


@dataclass(frozen=True, slots=True)
class PaperRequest:
    """What is asked for, in words; the papers that answer it; and the need behind it, if generated."""

    text: str
    answers: tuple[int, ...]
    need: FacetRequirement | None = None


class Library:
    """A graph that can be searched and expanded, within limits."""

    def __init__(
        self,
        graph: PaperGraph,
        index: SearchIndex,
        requests: Sequence[FacetRequirement | PaperRequest],
        limits: PaperLimits,
    ) -> None:
        self.graph, self.index, self.limits = graph, index, limits
        self._requests = requests
        self.search = lru_cache(KEPT_SEARCHES)(self._search)
        self._request = lru_cache(None)(self._read_request)

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    @property
    def num_requests(self) -> int:
        """Distinct requests there are, those that make no tasks included."""
        return len(self._requests)

    def draw_request(self, rng: Random) -> PaperRequest:
        """A request whose answers the selector tells apart well enough."""
        for _ in range(1000):
            request = self._request(rng.randrange(len(self._requests)))
            if request is not None:
                return request
        raise ConfigError("the selector judges no request of this graph well; raise env.options.num_papers")

    def make_selector(self, request: PaperRequest) -> Selector:
        """Who judges what is found for a request."""
        return Selector(self.graph, request.text, request.answers, request.need)

    def _read_request(self, place: int) -> PaperRequest | None:
        """One of the requests; None if the selector judges it too badly."""
        found = self._requests[place]
        if isinstance(found, FacetRequirement):
            text = write_request(self.graph, found, is_short=self.limits.is_short)
            found = PaperRequest(text, tuple(found.answers(self.graph)), found)
        return found if self.make_selector(found).compute_ceiling() >= MIN_CEILING else None

    def _search(self, query: str) -> tuple[int, ...]:
        """Numbers of the papers that a search returns, best first."""
        numbers = self.graph.numbers
        return tuple(numbers[hit.id] for hit in self.index.search(query, self.limits.num_results))

    def expand(self, paper: int) -> list[int]:
        """Papers that an expansion returns: citing ones, most cited first, then cited ones."""
        citing = self.graph.list_citations(paper)[: self.limits.num_citing]
        return list(dict.fromkeys(citing + self.graph.list_references(paper)[: self.limits.num_cited]))

    def list_neighbours(self, paper: int) -> list[int]:
        """Every paper that cites it or that it cites: whoever's expansion may bring it."""
        return self.graph.list_references(paper) + self.graph.list_citations(paper)


@lru_cache(maxsize=8)
def open_library(options: PaperSearchOptions) -> Library:
    """The library of some options."""
    limits = options.limits
    if options.snapshot is None:
        if options.requests is not None:
            raise ConfigError("env.options.requests goes with env.options.snapshot; set both or neither")
        graph, index = _open_generated(options.graph_spec, options.search)
        needs = list_needs(graph, NEED_SIZES, limits.min_answers, limits.max_answers)
        if not needs:
            raise ConfigError(
                f"no request over {len(graph)} papers has {limits.min_answers} to {limits.max_answers} "
                "answers; raise env.options.num_papers, or change min_answers and max_answers"
            )
        return Library(graph, index, needs, limits)
    if options.requests is None:
        raise ConfigError("env.options.requests: a snapshot needs a file of requests with their answers")
    graph, index = _open_snapshot(Path(options.snapshot), options.search)
    requests = [PaperRequest(*row) for row in read_requests(Path(options.requests), graph)]
    return Library(graph, index, requests, limits)


@lru_cache(maxsize=4)
def _open_generated(spec: GraphSpec, kind: IndexKind) -> tuple[PaperGraph, SearchIndex]:
    graph = open_generated_graph(spec)
    return graph, build_index(graph, kind)


@lru_cache(maxsize=2)
def _open_snapshot(folder: Path, kind: IndexKind) -> tuple[PaperGraph, SearchIndex]:
    graph = read_snapshot(folder)
    return graph, build_index(graph, kind)


def build_index(graph: PaperGraph, kind: IndexKind) -> SearchIndex:
    """The search index over a graph's titles and abstracts."""
    rows = zip(graph.ids, graph.titles, graph.abstracts, strict=True)
    return SearchIndex.build([Document(*row) for row in rows], kind)
