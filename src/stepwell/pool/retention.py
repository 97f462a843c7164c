"""Garbage collection by size and age, the oldest groups first.

Invariants
* A group is removed completely or not at all: a group that comes back after a crash is never served
  in part.
* Never removed: a group with an open trajectory, a leased group, one with a trajectory tagged `keep`,
  one of the train channel that was not consumed (unless requested), and one that its consumer
  acknowledged for its newest checkpoint, because that checkpoint may not be on disk yet.
* An image is removed when no trajectory has it any more and nobody stored it within the last hour
  (storing it again resets its age, before the step that shows it is appended).
* Removal runs in small transactions, so that producers wait for a few groups at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, exists, func, or_, select

from stepwell.core.errors import InputError
from stepwell.pool.blobs import BlobStore
from stepwell.pool.database import Database
from stepwell.pool.results import KEEP_TAG, Channel, GcResult
from stepwell.pool.schema import CONSUMED, LEASED, groups, images, steps, tags, trajectories

_BATCH = 50
_BLOB_GRACE_S = 3600.0


def collect_garbage(
    db: Database,
    blobs: BlobStore | None,
    *,
    max_bytes: int | None,
    max_age_s: float | None,
    channel: Channel | None,
    unconsumed: bool,
    dry_run: bool,
) -> GcResult:
    """Remove groups until the rest is within both limits, or nothing more may be removed."""
    for name, value in (("max_bytes", max_bytes), ("max_age_s", max_age_s)):
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{name} is {value}; it must be a finite number, 0 or more")
    found = db.read(lambda connection: connection.execute(_find_candidates(channel, unconsumed)).all())
    excess = db.read(partial(_count_bytes, channel=channel)) - (max_bytes or 0)
    chosen = _choose_groups(found, excess, max_age_s, by_size=max_bytes is not None)
    total = GcResult(
        num_trajectories=sum(row.num for row in chosen),
        num_steps=sum(int(row.num_steps) for row in chosen),
        num_bytes=sum(int(row.num_bytes) for row in chosen),
    )
    if dry_run or not chosen:
        return total
    for start in range(0, len(chosen), _BATCH):
        seqs = [row.seq for row in chosen[start : start + _BATCH]]
        db.write(partial(_remove_groups, seqs=seqs, unconsumed=unconsumed))
    db.shrink()
    num_blobs = 0 if blobs is None else remove_unused_blobs(db, blobs)
    return GcResult(total.num_trajectories, total.num_steps, total.num_bytes, num_blobs)


def _find_candidates(channel: Channel | None, unconsumed: bool) -> Select[Any]:
    """Removable groups with their counts, the oldest first."""
    t = trajectories.c
    query = (
        select(
            groups.c.seq,
            func.count().label("num"),
            func.coalesce(func.sum(t.num_steps), 0).label("num_steps"),
            func.coalesce(func.sum(t.num_bytes), 0).label("num_bytes"),
            func.max(t.finished_s).label("finished_s"),
        )
        .join(trajectories, t.group == groups.c.seq)
        .where(_is_removable(unconsumed))
        .group_by(groups.c.seq)
        .order_by(groups.c.seq)
    )
    return query if channel is None else query.where(groups.c.channel == channel.value)


def _is_removable(unconsumed: bool) -> ColumnElement[bool]:
    member = trajectories.alias()
    is_open = exists().where(member.c.group == groups.c.seq, member.c.status.is_(None))
    kept = exists().where(
        member.c.group == groups.c.seq, tags.c.trajectory == member.c.seq, tags.c.tag == KEEP_TAG
    )
    other = groups.alias()
    newest = (
        select(func.max(other.c.checkpoint))
        .where(other.c.consumer == groups.c.consumer, other.c.state == CONSUMED)
        .scalar_subquery()
    )
    settled = (groups.c.state == CONSUMED) & (groups.c.checkpoint < newest)
    waiting = (groups.c.state != CONSUMED) & (groups.c.state != LEASED)
    if not unconsumed:
        waiting &= groups.c.channel != Channel.TRAIN.value
    return or_(settled, waiting) & ~is_open & ~kept


def _count_bytes(connection: Connection, channel: Channel | None) -> int:
    query = select(func.coalesce(func.sum(trajectories.c.num_bytes), 0))
    query = query if channel is None else query.where(trajectories.c.channel == channel.value)
    return int(connection.execute(query).scalar_one())


def _choose_groups(
    found: Sequence[Any], excess: float, max_age_s: float | None, *, by_size: bool
) -> list[Any]:
    """From the oldest on: groups that are too old, and groups above the size limit."""
    limit_s = -math.inf if max_age_s is None else time.time() - max_age_s
    chosen = []
    for row in found:
        if row.finished_s < limit_s or (by_size and excess > 0):
            chosen.append(row)
            excess -= int(row.num_bytes)
    return chosen


def _remove_groups(connection: Connection, seqs: list[int], unconsumed: bool) -> None:
    """Remove groups that are still removable: somebody may have taken one since they were chosen."""
    going = select(groups.c.seq).where(groups.c.seq.in_(seqs), _is_removable(unconsumed))
    still = list(connection.execute(going.with_for_update(of=groups)).scalars())
    members = select(trajectories.c.seq).where(trajectories.c.group.in_(still))
    connection.execute(delete(steps).where(steps.c.trajectory.in_(members)))
    connection.execute(delete(trajectories).where(trajectories.c.group.in_(still)))
    connection.execute(delete(groups).where(groups.c.seq.in_(still)))


def remove_unused_blobs(db: Database, blobs: BlobStore) -> int:
    """Remove images that no trajectory has; returns their number."""
    blobs.sweep()
    limit_s = time.time() - _BLOB_GRACE_S
    old = [key for key in blobs.keys() if not _is_used(db, key)]  # noqa: SIM118
    return sum(blobs.remove_old(key, limit_s) for key in old)


def _is_used(db: Database, key: str) -> bool:
    query = select(images.c.image).where(images.c.image == key).limit(1)
    return db.read(lambda connection: connection.execute(query).first()) is not None
