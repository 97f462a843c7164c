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
from stepwell.data.cache import open_cached
from stepwell.envs.retrieval.documents import Document, digest_documents
from stepwell.envs.retrieval.embedder import Embedder, Vectors
from stepwell.envs.retrieval.ranking import Scores, find_best

DECIMALS = 5


class VectorIndex:
    """An index by meaning."""

    def __init__(self, documents: Sequence[Document], embedder: Embedder, cache: Path | None = None) -> None:
        self.embedder = embedder
        shape = (len(documents), embedder.width)
        self._vectors = open_cached(
            f"embeddings/{embedder.name}-{digest_documents(documents)}.npy",
            lambda path: _save_vectors(path, embedder.encode([document.searched for document in documents])),
            lambda path: _load_vectors(path, shape),
            cache,
        )

    def score_documents(self, query: str) -> Scores:
        """The cosine of every document with the query."""
        return np.round(self._vectors @ self.embedder.encode_query(query), DECIMALS)

    def search(self, query: str, k: int) -> list[tuple[int, float]]:
        """(place, cosine) of the `k` nearest documents."""
        if not query.strip():
            return []
        scores = self.score_documents(query)
        return [(int(place), float(scores[place])) for place in find_best(scores, k)]


def _save_vectors(path: Path, vectors: Vectors) -> None:
    with open(path, "wb") as file:
        np.save(file, vectors)


def _load_vectors(path: Path, shape: tuple[int, int]) -> Vectors:
    try:
        vectors: Vectors = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise EncodingError(f"no array of vectors: {error}") from error
    if vectors.shape != shape or vectors.dtype != np.float32:
        raise EncodingError(f"vectors {vectors.dtype} {vectors.shape} where float32 {shape} are expected")
    return vectors
