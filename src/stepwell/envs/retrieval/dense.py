"""Search by meaning: the cosine of sentence vectors, compared with every document.

The documents' vectors are computed once and kept in the cache under a digest of the documents and of the
model. Scores are rounded, so that the last bits of a matrix product, which depend on the machine and on
how many queries are asked at once, do not decide an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepwell.core.errors import EncodingError
from stepwell.data.cache import cached
from stepwell.envs.retrieval.documents import Document, digest
from stepwell.envs.retrieval.embedder import Embedder, Vectors
from stepwell.envs.retrieval.ranking import Scores, best

DECIMALS = 5


class VectorIndex:
    """An index by meaning."""

    def __init__(self, documents: Sequence[Document], embedder: Embedder, cache: Path | None = None) -> None:
        self.embedder = embedder
        shape = (len(documents), embedder.width)
        self._vectors = cached(
            f"embeddings/{embedder.name}-{digest(documents)}.npy",
            lambda path: _save(path, embedder.encode([document.searched for document in documents])),
            lambda path: _load(path, shape),
            cache,
        )

    def scores(self, query: str) -> Scores:
        """The cosine of every document with the query."""
        return np.round(self._vectors @ self.embedder.encode_query(query), DECIMALS)

    def search(self, query: str, k: int) -> list[tuple[int, float]]:
        """(place, cosine) of the `k` nearest documents."""
        if not query.strip():
            return []
        scores = self.scores(query)
        return [(int(place), float(scores[place])) for place in best(scores, k)]


def _save(path: Path, vectors: Vectors) -> None:
    with open(path, "wb") as file:
        np.save(file, vectors)


def _load(path: Path, shape: tuple[int, int]) -> Vectors:
    try:
        vectors: Vectors = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise EncodingError(f"no array of vectors: {error}") from error
    if vectors.shape != shape or vectors.dtype != np.float32:
        raise EncodingError(f"vectors {vectors.dtype} {vectors.shape} where float32 {shape} are expected")
    return vectors
