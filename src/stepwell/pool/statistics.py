"""Counts of what a pool holds, by channel, status, group state, consumer and tag.

These queries read every trajectory (and the steps of open ones). Use them interactively, not in a
loop.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, func, select

from stepwell.pool.blobs import BlobStore
from stepwell.pool.database import Database
from stepwell.pool.results import Channel, ChannelStats, PoolStats
from stepwell.pool.schema import (
    CONSUMED,
    LEASED,
    groups,
    outcomes,
    reports,
    rewards,
    steps,
    tags,
    trajectories,
    versions,
)


def compute_stats(db: Database, blobs: BlobStore | None) -> PoolStats:
    """All counts of a pool."""
    counted = db.read(_count_rows)
    return PoolStats(
        **counted,
        num_blobs=0 if blobs is None else sum(1 for _ in blobs.keys()),  # noqa: SIM118
        blob_bytes=0 if blobs is None else blobs.count_bytes(),
        disk_bytes=db.count_bytes(),
    )


def _count_rows(connection: Connection) -> dict[str, Any]:
    tagged = connection.execute(select(tags.c.tag, func.count()).group_by(tags.c.tag).order_by(tags.c.tag))
    tables = {
        "num_rewards": rewards,
        "num_outcomes": outcomes,
        "num_reports": reports,
        "num_versions": versions,
    }
    return {
        "channels": {channel: _count_channel(connection, channel) for channel in Channel},
        "consumers": _count_consumers(connection),
        "tags": {name: int(count) for name, count in tagged},
        **{
            name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
            for name, table in tables.items()
        },
    }


def _count_channel(connection: Connection, channel: Channel) -> ChannelStats:
    t = trajectories.c
    finished = connection.execute(
        select(t.status, func.count().label("num"), func.sum(t.num_steps), func.sum(t.num_bytes))
        .where(t.channel == channel.value, t.status.is_not(None))
        .group_by(t.status)
    ).all()
    open_steps, open_bytes = connection.execute(
        select(func.count(), func.coalesce(func.sum(func.length(steps.c.record)), 0))
        .join(trajectories, t.seq == steps.c.trajectory)
        .where(t.channel == channel.value, t.status.is_(None))
    ).one()
    num_open = connection.execute(
        select(func.count()).select_from(trajectories).where(t.channel == channel.value, t.status.is_(None))
    ).scalar_one()
    states: Any = connection.execute(
        select(groups.c.state, func.count()).where(groups.c.channel == channel.value).group_by(groups.c.state)
    )
    return ChannelStats(
        num_trajectories=num_open + sum(num for _, num, _, _ in finished),
        num_open=num_open,
        num_steps=int(open_steps) + sum(int(num) for _, _, num, _ in finished),
        num_bytes=int(open_bytes) + sum(int(size) for _, _, _, size in finished),
        statuses={status: num for status, num, _, _ in finished},
        groups={state: num for state, num in states},
    )


def _count_consumers(connection: Connection) -> dict[str, tuple[int, int, int | None]]:
    query = (
        select(groups.c.consumer, groups.c.state, func.count(), func.max(groups.c.checkpoint))
        .where(groups.c.consumer.is_not(None))
        .group_by(groups.c.consumer, groups.c.state)
    )
    found: dict[str, dict[str, tuple[int, int | None]]] = defaultdict(dict)
    for consumer, state, num, newest in connection.execute(query):
        found[consumer][state] = (num, newest)
    none = (0, None)
    return {
        consumer: (states.get(LEASED, none)[0], *states.get(CONSUMED, none))
        for consumer, states in sorted(found.items())
    }
