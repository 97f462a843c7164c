"""Citation graphs of papers: generated ones, and those read from a Semantic Scholar snapshot."""

from stepwell.envs.paper_search.papers.generator import GraphSpec, open_generated_graph
from stepwell.envs.paper_search.papers.graph import Facet, PaperGraph
from stepwell.envs.paper_search.papers.needs import FacetRequirement, list_needs, read_need, write_request
from stepwell.envs.paper_search.papers.selector import Quality, Selector, measure_quality

__all__ = [
    "Facet",
    "FacetRequirement",
    "GraphSpec",
    "PaperGraph",
    "Quality",
    "Selector",
    "list_needs",
    "measure_quality",
    "open_generated_graph",
    "read_need",
    "write_request",
]
