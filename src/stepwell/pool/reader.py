"""What reads a pool: images, summaries, trajectories and counts. `Pool` adds what changes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from stepwell.core import Trajectory
from stepwell.core.arrays import AnyArray
from stepwell.core.errors import ConfigError, InputError
from stepwell.pool import queries, statistics
from stepwell.pool.blobs import BlobStore
from stepwell.pool.database import Database
from stepwell.pool.filters import Filter
from stepwell.pool.results import PoolStats, StoredTrajectory, TrajectorySummary

EVERYTHING = Filter()


class PoolReader:
    """An open pool, as far as it is read. Use as a context manager, or call `close`."""

    def __init__(self, db: Database, blobs: str | Path | None, *, flush_blobs: bool = True) -> None:
        self._db = db
        self._blob_folder = blobs
        self._flush_blobs = flush_blobs
        self._blobs: BlobStore | None = None

    @property
    def is_read_only(self) -> bool:
        """Whether this pool can only be read: there is no write permission for its file or folder."""
        return self._db.is_read_only

    @property
    def blobs(self) -> BlobStore:
        """Images by content hash."""
        if self._blobs is None:
            if self._blob_folder is None:
                raise ConfigError("this pool has no folder for images; call open_pool(url, blobs=FOLDER)")
            self._blobs = BlobStore(self._blob_folder, flush=self._flush_blobs)
        return self._blobs

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Everything accepted is already committed."""
        self._db.close()

    def load_image(self, name: str) -> AnyArray:
        """The pixels of an image of a trajectory, for `ImageStore(load=pool.load_image)`."""
        try:
            return self.blobs.get_image(name)
        except KeyError as error:
            raise InputError(
                f"images: image {name} is not in this pool; whoever stores a trajectory must also call "
                "`store_images`"
            ) from error

    def has(self, id: str) -> bool:
        """Whether a trajectory with this id exists, open or finished."""
        return queries.has_trajectory(self._db, id)

    def get(self, id: str, *, with_branches: bool = False) -> StoredTrajectory:
        """One trajectory with everything about it; `with_branches`: also the steps off its path."""
        return queries.get_trajectory(self._db, id, with_branches=with_branches)

    def find(
        self,
        where: Filter = EVERYTHING,
        *,
        newest_first: bool = False,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[TrajectorySummary]:
        """Summaries of trajectories, without steps, in order of creation.

        `after` continues after the trajectory with this id, as the next page of a list does.
        """
        return queries.find_summaries(self._db, where, newest_first=newest_first, limit=limit, after=after)

    def trajectories(self, where: Filter = EVERYTHING) -> Iterator[Trajectory]:
        """Trajectories in order of creation, read lazily. Takes no lease."""
        return queries.iter_trajectories(self._db, where)

    def count(self, where: Filter = EVERYTHING) -> int:
        """The number of matching trajectories."""
        return queries.count_trajectories(self._db, where)

    def stats(self) -> PoolStats:
        """Counts of what the pool holds. Reads every trajectory, so do not call it in a loop."""
        return statistics.compute_stats(self._db, self._find_blobs())

    def _find_blobs(self) -> BlobStore | None:
        return None if self._blob_folder is None else self.blobs
