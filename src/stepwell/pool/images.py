"""Pictures that a pool keeps: stored as they are added, read again when memory has let them go.

Invariant: a picture is in the blob store before its name is in any message, so that every process
that opens the same pool finds the pixels of every prompt and every step.
"""

from __future__ import annotations

from stepwell.core import ImageStore
from stepwell.core.arrays import AnyArray
from stepwell.pool.store import Pool


class PoolImageStore(ImageStore):
    """`ImageStore` over the blob store of a pool; what it lacks is read from `also`, another pool."""

    def __init__(self, pool: Pool, *, also: Pool | None = None) -> None:
        self._blobs = pool.blobs

        def load(name: str) -> AnyArray:
            return (pool if also is None or name in self._blobs else also).load_image(name)

        super().__init__(load=load)

    def _store(self, array: AnyArray) -> None:
        self._blobs.put_image(array)
