"""The search index: documents in, ranked hits out, by words, by meaning, or by both.

    index = SearchIndex.build(documents, kind="hybrid")
    index.search("capital of the country of Lyon", k=5)   ->  [Hit(id, score, rank), ...]

* bm25: by words (`bm25`), those of a title counted thrice; needs nothing but numpy.
* dense: by meaning (`dense`), with a packaged sentence model.
* hybrid: both orders, `FUSION_DEPTH` or `k` deep, joined by reciprocal rank (`ranking`).

The same documents and query give the same hits, whatever else is asked before or beside it. A query may be
any text: an empty one finds nothing, a huge one is read up to a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from stepwell.core.errors import ConfigError, InputError
from stepwell.envs.retrieval.bm25 import WordIndex
from stepwell.envs.retrieval.dense import VectorIndex
from stepwell.envs.retrieval.documents import Document, Hit, check_documents
from stepwell.envs.retrieval.embedder import Embedder, load_minilm
from stepwell.envs.retrieval.ranking import fuse_rankings

IndexKind = Literal["bm25", "dense", "hybrid"]
KINDS: tuple[IndexKind, ...] = get_args(IndexKind)
FUSION_DEPTH = 100


class SearchIndex:
    """Documents that can be searched; made by `build`."""

    def __init__(
        self, documents: Sequence[Document], by_words: WordIndex | None, by_meaning: VectorIndex | None
    ) -> None:
        assert by_words is not None or by_meaning is not None
        self.documents = tuple(documents)
        self._place = {document.id: place for place, document in enumerate(self.documents)}
        self._by_words, self._by_meaning = by_words, by_meaning

    @classmethod
    def build(
        cls,
        documents: Sequence[Document],
        kind: IndexKind = "bm25",
        cache: Path | None = None,
        embedder: Embedder | None = None,
    ) -> SearchIndex:
        """An index of one kind. `cache` holds the documents' vectors, by default the cache of data."""
        if kind not in KINDS:
            raise ConfigError(f"there is no search index of kind {kind!r}; known: {', '.join(KINDS)}")
        check_documents(documents)
        by_words = by_meaning = None
        if kind != "dense":
            by_words = WordIndex([document.counted for document in documents])
        if kind != "bm25":
            by_meaning = VectorIndex(documents, embedder or load_minilm(), cache)
        return cls(documents, by_words, by_meaning)

    def __deepcopy__(self, memo: object) -> SearchIndex:
        """Itself: an index never changes, so copies of what holds it share it."""
        return self

    def __len__(self) -> int:
        return len(self.documents)

    def __contains__(self, id: str) -> bool:
        return id in self._place

    def __getitem__(self, id: str) -> Document:
        """The document of an id."""
        if id not in self._place:
            raise InputError(f"there is no document {id!r} in the index")
        return self.documents[self._place[id]]

    def search(self, query: str, k: int) -> list[Hit]:
        """The `k` best documents, best first; fewer where fewer are found."""
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        return [
            Hit(self.documents[place].id, score, rank)
            for rank, (place, score) in enumerate(self._rank_documents(query, min(k, len(self))), start=1)
        ]

    def _rank_documents(self, query: str, k: int) -> list[tuple[int, float]]:
        if self._by_meaning is None:
            assert self._by_words is not None
            return self._by_words.search(query, k)
        if self._by_words is None:
            return self._by_meaning.search(query, k)
        depth = max(k, FUSION_DEPTH)
        found = [self._by_words.search(query, depth), self._by_meaning.search(query, depth)]
        return fuse_rankings([np.array([place for place, _ in hits], np.intp) for hits in found])[:k]
