"""Queries that find a given passage: what the oracle searches for, tried on the index itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from stepwell.envs.multihop_qa.guide import MAX_QUERY_CHARS
from stepwell.envs.retrieval import SearchIndex


@lru_cache(maxsize=65_536)
def find_best_query(index: SearchIndex, id: str, question: str, num_results: int) -> str | None:
    """The first of a few queries whose results hold the passage; None if none of them does."""
    for query in _list_queries(index, id, question):
        if any(hit.id == id for hit in index.search(query, num_results)):
            return query
    return None


def _list_queries(index: SearchIndex, id: str, question: str) -> Iterator[str]:
    """A passage's title, with the question, with how its text begins, and that beginning alone."""
    title, text = index[id].title, index[id].text
    beginning = " ".join(text.split()[:25])
    for query in (title, f"{title} {question}", f"{title} {beginning}", beginning):
        yield query[:MAX_QUERY_CHARS]
