"""The data pool: stored trajectories, never lost and never served twice, and images by content hash."""

from stepwell.pool.blobs import BlobStore
from stepwell.pool.filters import Filter
from stepwell.pool.images import PoolImageStore
from stepwell.pool.results import (
    Channel,
    ChannelStats,
    GcResult,
    Lease,
    LeasedGroup,
    OutcomeEntry,
    PoolStats,
    PublishedVersion,
    RewardEntry,
    StoredTrajectory,
    TrajectoryReport,
    TrajectorySummary,
)
from stepwell.pool.store import Pool, open_pool

__all__ = [
    "BlobStore",
    "Channel",
    "ChannelStats",
    "Filter",
    "GcResult",
    "Lease",
    "LeasedGroup",
    "OutcomeEntry",
    "Pool",
    "PoolImageStore",
    "PoolStats",
    "PublishedVersion",
    "RewardEntry",
    "StoredTrajectory",
    "TrajectoryReport",
    "TrajectorySummary",
    "open_pool",
]
