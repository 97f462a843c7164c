"""Pictures that a pool keeps: stored as they are added, read again when memory has let them go.

Invariant: a picture is in the blob store before its name is in any message, so that every process
that opens the same pool finds the pixels of every prompt and every step.
"""

from __future__ import annotations

from stepwell.core import Pictures
from stepwell.core.arrays import AnyArray
from stepwell.core.pictures import picture_name
from stepwell.pool.store import Pool


class PoolPictures(Pictures):
    """`Pictures` over the blob store of a pool."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(load=pool.picture)
        self._blobs = pool.blobs

    def add(self, image: AnyArray) -> str:
        """Store a picture that is new here; gives its name."""
        if picture_name(image) not in self:
            self._blobs.put_image(image)
        return super().add(image)
