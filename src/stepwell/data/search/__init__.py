"""Search over documents: by words (BM25), by meaning (sentence embeddings), or by both."""

from stepwell.data.search.documents import Document, Hit
from stepwell.data.search.index import KINDS, Kind, SearchIndex

__all__ = ["KINDS", "Document", "Hit", "Kind", "SearchIndex"]
