"""The data pool: trajectories that are never lost and never served twice, and images by content hash."""

from stepwell.pool.blobs import BlobStore
from stepwell.pool.entries import (
    Channel,
    ChannelStats,
    Collected,
    Entry,
    Lease,
    Report,
    RewardEntry,
    Stats,
    Stored,
    Taken,
    Version,
)
from stepwell.pool.filters import Filter
from stepwell.pool.pictures import PoolPictures
from stepwell.pool.store import Pool, open_pool

__all__ = [
    "BlobStore",
    "Channel",
    "ChannelStats",
    "Collected",
    "Entry",
    "Filter",
    "Lease",
    "Pool",
    "PoolPictures",
    "Report",
    "RewardEntry",
    "Stats",
    "Stored",
    "Taken",
    "Version",
    "open_pool",
]
