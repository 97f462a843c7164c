"""Leases of complete groups: consumers take, acknowledge, and resume.

    ready ── take ──► leased ── acknowledge(checkpoint n) ──► consumed
      ▲                 │ lease expires, give_back, restore       │
      └─────────────────┴──────────── restore(older than n) ◄─────┘

Invariants
* A group is leased to one consumer at a time, and the move to `leased` is committed before anyone
  sees its trajectories. Two consumers that take at once get different groups.
* A group with an expired lease is served to others, and to the same consumer after a restart, but
  never to the pool object that holds the lease: a slow trainer does not get its own groups again.
* Consumption belongs to a checkpoint. A consumer acknowledges before it publishes checkpoint n.
  If it dies in between, `restore(n - 1)` brings the groups back; otherwise `restore(n)` keeps them.
* The work per call depends on the number of groups taken, not on how many are stored: both
  queries use an index.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, update

from stepwell.core.errors import InputError
from stepwell.pool.database import Database
from stepwell.pool.filters import Filter
from stepwell.pool.results import Channel, Lease
from stepwell.pool.schema import CONSUMED, IS_LEASED, IS_READY, LEASED, READY, groups, trajectories

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.1
_FREE: dict[str, Any] = {
    "state": READY,
    "consumer": None,
    "holder": None,
    "lease_s": None,
    "lease_until_s": None,
    "checkpoint": None,
}


def lease_groups(
    db: Database,
    connection: Connection,
    holder: str,
    consumer: str,
    num_groups: int,
    channel: Channel,
    where: Filter | None,
    lease_s: float,
) -> list[tuple[int, str, Lease]]:
    """Lease the oldest complete groups; returns `seq`, name and lease of each."""
    now = db.read_clock(connection)
    found = sorted(
        (row.seq, row.name)
        for query in _free_groups(channel, where, now, holder, num_groups)
        for row in connection.execute(query.with_for_update(skip_locked=True, of=groups))
    )[:num_groups]
    if found:
        lease = {
            "state": LEASED,
            "consumer": consumer,
            "holder": holder,
            "lease_s": lease_s,
            "lease_until_s": now + lease_s,
        }
        seqs = [seq for seq, _ in found]
        connection.execute(update(groups).where(groups.c.seq.in_(seqs)).values(lease))
    return [(seq, name, Lease(consumer, now + lease_s)) for seq, name in found]


def has_ready(
    db: Database, connection: Connection, channel: Channel, where: Filter | None, holder: str
) -> bool:
    """Whether `lease_groups` would find a group; takes no lock, so that waiting blocks nobody."""
    queries = _free_groups(channel, where, db.read_clock(connection), holder, 1)
    return any(connection.execute(query).first() is not None for query in queries)


def wait_for_groups(db: Database, channel: Channel, where: Filter | None, holder: str, wait_s: float) -> bool:
    """Wait up to `wait_s` for a group to lease; returns whether there is one."""
    until, pause = time.monotonic() + wait_s, _FIRST_WAIT_S
    while True:
        if db.read(lambda connection: has_ready(db, connection, channel, where, holder)):
            return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_WAIT_S)


def _free_groups(
    channel: Channel, where: Filter | None, now: float, holder: str, limit: int
) -> list[Select[tuple[int, str]]]:
    """Two queries, because each has its own index: ready groups, and groups with an expired lease."""
    g = groups.c
    chosen = select(g.seq, g.name).where(g.channel == channel.value).limit(limit)
    if where is not None:
        chosen = chosen.where(~_has_other_member(where))
    expired = chosen.where(IS_LEASED, g.lease_until_s <= now, g.holder != holder)
    # Not by `seq` itself: a planner might then scan all groups in that order for an expired lease
    return [chosen.where(IS_READY).order_by(g.seq), expired.order_by(g.seq + 0)]


def _has_other_member(where: Filter) -> ColumnElement[bool]:
    """Whether a served trajectory of the group does not match the filter.

    Counted, because PostgreSQL may turn an `exists` into a join with every trajectory.
    """
    own = trajectories.c.group == groups.c.seq  # else all matches would be scanned for every group
    fitting = select(trajectories.c.seq).where(own, *where.build_conditions(of_few=True)).correlate(groups)
    member = trajectories.alias()
    served = (member.c.group == groups.c.seq) & member.c.place.is_not(None)
    others = select(func.count()).where(served, member.c.seq.not_in(fitting)).correlate(groups)
    return others.scalar_subquery() > 0


def renew_leases(db: Database, connection: Connection, consumer: str) -> int:
    """Restart every lease of a consumer."""
    mine = (groups.c.consumer == consumer) & (groups.c.state == LEASED)
    until = db.read_clock(connection) + groups.c.lease_s
    return int(connection.execute(update(groups).where(mine).values(lease_until_s=until)).rowcount)


def give_back(connection: Connection, names: Sequence[str]) -> int:
    """Make leased groups ready again."""
    leased = groups.c.name.in_(list(names)) & (groups.c.state == LEASED)
    return int(connection.execute(update(groups).where(leased).values(_FREE)).rowcount)


def acknowledge_groups(connection: Connection, consumer: str, names: Sequence[str], checkpoint: int) -> None:
    """Mark leased groups as consumed by checkpoint number `checkpoint`."""
    mine = (groups.c.consumer == consumer) & (groups.c.state == LEASED)
    consumed = {"state": CONSUMED, "checkpoint": checkpoint, "lease_until_s": None}
    wanted = list(dict.fromkeys(names))
    statement = update(groups).where(groups.c.name.in_(wanted), mine).values(consumed)
    if connection.execute(statement).rowcount < len(wanted):
        _check_acknowledged(connection, consumer, wanted, checkpoint)


def _check_acknowledged(connection: Connection, consumer: str, names: list[str], checkpoint: int) -> None:
    """Refuse groups that the consumer does not hold; repeating an acknowledgement is fine."""
    rows = {row.name: row for row in connection.execute(select(groups).where(groups.c.name.in_(names)))}
    for name in names:
        row = rows.get(name)
        if row is None:
            raise InputError(f"group {name!r} is not in the pool")
        if (row.state, row.consumer, row.checkpoint) != (CONSUMED, consumer, checkpoint):
            held = f", held by {row.consumer!r}" if row.consumer else ""
            raise InputError(
                f"{consumer!r} does not hold group {name!r}: it is {row.state}{held}. The lease expired "
                "or was given back; use a longer lease_s, or call renew"
            )


def restore_groups(connection: Connection, consumer: str, checkpoint: int | None) -> int:
    """Free the groups that `checkpoint` does not contain; returns their number."""
    mine = groups.c.consumer == consumer
    later = mine & (groups.c.state == CONSUMED)
    if checkpoint is not None:
        later &= groups.c.checkpoint > checkpoint
    lost = later, mine & (groups.c.state == LEASED)  # separate: each is a range of the index
    return sum(int(connection.execute(update(groups).where(each).values(_FREE)).rowcount) for each in lost)
