"""Search over documents: by words (BM25), by meaning (sentence embeddings), or by both."""

from stepwell.envs.retrieval.documents import Document, Hit
from stepwell.envs.retrieval.index import KINDS, IndexKind, SearchIndex

__all__ = ["KINDS", "Document", "Hit", "IndexKind", "SearchIndex"]
