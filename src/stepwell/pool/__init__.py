"""The data pool. So far the blob store: images, kept once by content hash."""

from stepwell.pool.blobs import BlobStore

__all__ = ["BlobStore"]
