"""Images in a pool: stored when they are added, loaded again when they left memory.

Invariant: an image is in the blob store before its name is in any message. So every process that
opens the same pool finds the pixels of every prompt and every step.
"""

from __future__ import annotations

from stepwell.core import ImageStore
from stepwell.core.arrays import AnyArray
from stepwell.pool.store import Pool


class PoolImageStore(ImageStore):
    """`ImageStore` over the blob store of a pool; missing images are read from another pool, `also`."""

    def __init__(self, pool: Pool, *, also: Pool | None = None) -> None:
        self._blobs = pool.blobs

        def load(name: str) -> AnyArray:
            return (pool if also is None or name in self._blobs else also).load_image(name)

        super().__init__(load=load)

    def _store(self, array: AnyArray) -> None:
        self._blobs.put_image(array)
