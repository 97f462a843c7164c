"""Citation graphs of papers: generated ones, and those read from a Semantic Scholar snapshot."""

from stepwell.envs.paper_search.papers.generator import GraphSpec, generated_graph
from stepwell.envs.paper_search.papers.graph import Facet, PaperGraph
from stepwell.envs.paper_search.papers.needs import Need, needs_of, read_need, request_of
from stepwell.envs.paper_search.papers.selector import Quality, Selector, quality

__all__ = [
    "Facet",
    "GraphSpec",
    "Need",
    "PaperGraph",
    "Quality",
    "Selector",
    "generated_graph",
    "needs_of",
    "quality",
    "read_need",
    "request_of",
]
