"""Settings of paper search. What is left out (`None`) follows from `size`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.envs.options import declare_host_option
from stepwell.envs.paper_search.papers import GraphSpec


@dataclass(frozen=True, slots=True)
class PaperLimits:
    """The numbers of an episode: what a call returns, what a turn holds, what is shown."""

    num_results: int
    num_citing: int
    num_cited: int
    max_calls: int
    max_turns: int
    num_shown: int
    abstract_chars: int
    success_threshold: float
    min_answers: int
    max_answers: int
    is_short: bool


FULL = PaperLimits(10, 30, 99, 5, 5, 30, 0, 0.75, 6, 40, is_short=False)
TINY = PaperLimits(4, 4, 6, 2, 4, 5, 0, 0.6, 3, 16, is_short=True)
TINY_GRAPH = GraphSpec(num_papers=1_296, style="tiny", favoured=13, mean_references=5.0, max_references=12)


class PaperSearchOptions(Settings):
    """The graph, the search, and the limits; by default those of the published setting."""

    size: Literal["full", "tiny"] = Field(
        "full", description="full: texts for language models; tiny: words of one token, small limits"
    )
    oracle: Literal["planner", "searcher"] = Field(
        "planner", description="planner: knows the answers; searcher: knows only how things can be said"
    )
    search: Literal["bm25", "dense", "hybrid"] = Field("bm25", description="how search finds papers")
    num_papers: int | None = declare_host_option(
        None, ge=100, le=200_000, description="papers of the generated graph"
    )
    graph_seed: int = declare_host_option(0, ge=0, lt=2**63, description="seed of the generated graph")
    num_results: int | None = Field(None, ge=1, le=100, description="papers that a search returns")
    num_citing: int | None = Field(None, ge=0, le=1000, description="citing papers that expand returns")
    num_cited: int | None = Field(None, ge=0, le=1000, description="cited papers that expand returns")
    max_calls: int | None = Field(None, ge=1, le=32, description="parallel calls of a turn")
    max_turns: int | None = Field(None, ge=1, le=100, description="turns of an episode")
    num_shown: int | None = Field(None, ge=1, le=500, description="papers listed as new, and as old, at most")
    abstract_chars: int | None = Field(
        None, ge=0, le=2000, description="length of an abstract shown with a new paper"
    )
    success_threshold: float | None = Field(None, gt=0, le=1, description="F1 at the end for success")
    min_answers: int | None = Field(None, ge=1, le=10_000, description="fewer answers make no task")
    max_answers: int | None = Field(None, ge=1, le=10_000, description="more answers make no task")
    penalty: float = Field(0.5, ge=0, description="penalty for a repeat or an invalid expansion")
    max_query_chars: int = Field(500, ge=10, le=2000, description="longer queries are refused")
    snapshot: str | None = declare_host_option(
        None, description="folder of a Semantic Scholar snapshot, for a real graph"
    )
    requests: str | None = declare_host_option(
        None, description="JSONL of requests and their answers, with snapshot"
    )

    @property
    def limits(self) -> PaperLimits:
        """The numbers in force: given, or of the size."""
        preset = TINY if self.size == "tiny" else FULL
        given = {name: getattr(self, name, None) for name in PaperLimits.__slots__}
        return PaperLimits(**{name: getattr(preset, name) if v is None else v for name, v in given.items()})

    @property
    def graph_spec(self) -> GraphSpec:
        """The generated graph."""
        preset = TINY_GRAPH if self.size == "tiny" else GraphSpec()
        return replace(preset, num_papers=self.num_papers or preset.num_papers, seed=self.graph_seed)
