"""A library of seven papers, small enough to know every score and link by heart."""

from __future__ import annotations

import numpy as np

from stepwell.core import Task, ToolCall
from stepwell.envs.paper_search.env import PaperSearch
from stepwell.envs.paper_search.library import Library, PaperRequest, build_index
from stepwell.envs.paper_search.options import PaperSearchOptions
from stepwell.envs.paper_search.papers import Facet, FacetRequirement, PaperGraph

NEED = FacetRequirement(((0, 0), (1, 0)))  # "aaa ccc"
# title, about, cited; relevance to NEED in the comment
PAPERS: list[tuple[str, tuple[int, int], list[int]]] = [
    ("zzz", (0, 0), []),  # p0: 0.75, an answer
    ("bbb ddd", (1, 1), []),  # p1: 0, dropped
    ("aaa ddd", (0, 1), []),  # p2: 0.21875
    ("aaa", (0, 0), []),  # p3: 0.875, an answer
    ("aaa ccc", (0, 0), [0, 1, 2]),  # p4: 1, an answer
    ("bbb ccc", (1, 0), [4]),  # p5: 0.21875
    ("aaa ccc qqq", (0, 0), [3]),  # p6: 1, an answer
]
ANSWERS = (0, 3, 4, 6)
PARTLY = 0.25 * (0.75 + 0.25 / 2)


def small_graph() -> PaperGraph:
    count = len(PAPERS)
    return PaperGraph(
        ids=tuple(f"p{number}" for number in range(count)),
        titles=tuple(title for title, *_ in PAPERS),
        abstracts=("",) * count,
        years=np.arange(2000, 2000 + count, dtype=np.int32),
        cited=np.array([older for *_, cited in PAPERS for older in cited], np.int32),
        cited_ends=np.cumsum([len(cited) for *_, cited in PAPERS]).astype(np.int32),
        digest="small",
        facets=(Facet("domain", (("aaa",), ("bbb",))), Facet("task", (("ccc",), ("ddd",)))),
        about=np.array([about for _, about, _ in PAPERS], np.int32),
        mentions=np.full((count, 2), -1, np.int32),
    )


def small_task() -> Task:
    return Task(
        "paper_search",
        {
            "graph": "small",
            "request": "aaa ccc",
            "need": [[0, 0], [1, 0]],
            "answers": [f"p{number}" for number in ANSWERS],
        },
    )


def small_env(**options: object) -> PaperSearch:
    """The environment over the small library, at the start of its one task; searches return two papers."""
    given = {"size": "tiny", "num_results": 2, "max_calls": 5, **options}
    env = PaperSearch(PaperSearchOptions.model_validate(given))
    graph = small_graph()
    requests = [PaperRequest("aaa ccc", ANSWERS, NEED)]
    env.library = Library(graph, build_index(graph, "bm25"), requests, env.options.limits)
    env.reset(options={"task": small_task()})
    return env


def search(query: str) -> str:
    return ToolCall("search", {"query": query}).text


def expand(paper_id: str) -> str:
    return ToolCall("expand", {"id": paper_id}).text
