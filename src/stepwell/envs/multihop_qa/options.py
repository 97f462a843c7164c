"""Settings of multi-hop QA."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.envs.options import declare_host_option
from stepwell.envs.retrieval import IndexKind

FULL_RESULTS, TINY_RESULTS = 5, 1


class MultihopOptions(Settings):
    """Which questions, what is searched and how, and the limits of an episode."""

    size: Literal["full", "tiny"] = Field(
        "full", description="real facts in English, or short codes that a tiny model can copy"
    )
    domain: Literal["in", "out"] = Field(
        "in", description="the questions to learn from, or those from other sources with their own index"
    )
    dataset: str | None = declare_host_option(
        None, description="a file of HotpotQA, 2WikiMultihopQA or MuSiQue, in place of the built-in questions"
    )
    max_hops: int | None = Field(
        None, ge=1, le=100, description="leave out questions that take more searches one after the other"
    )
    index: IndexKind = Field("bm25", description="search by words, by meaning (dense), or by both (hybrid)")
    num_results: int | None = Field(
        None, ge=1, le=50, description="passages that a search shows; None: 5, or 1 where size is tiny"
    )
    passage_chars: int = Field(500, ge=20, le=100_000, description="longer passages are cut")
    turns_shown: int = Field(
        1, ge=1, le=20, description="turns whose results an observation holds; 1: those of the last one"
    )
    max_turns: int = Field(
        5, ge=1, le=1000, description="turns of an episode; reaching the limit is a failure"
    )
    max_searches: int = Field(4, ge=1, le=16, description="searches that may be made in one turn")

    @property
    def is_tiny(self) -> bool:
        """Whether questions are about codes."""
        return self.size == "tiny" and self.dataset is None

    @property
    def results_per_search(self) -> int:
        """How many passages a search shows."""
        return self.num_results or (TINY_RESULTS if self.is_tiny else FULL_RESULTS)
