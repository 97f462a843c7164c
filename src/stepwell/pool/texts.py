"""The texts of trajectories, for a search: task, replies and error, without what a policy needs.

Of a step only the head of its record is read: no array is built, no prompt is put together, no digest is
checked. That is an order of magnitude cheaper than reading trajectories.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, select

from stepwell.core.encoding import read_action_text
from stepwell.pool.filters import Filter
from stepwell.pool.reader import EVERYTHING, PoolReader
from stepwell.pool.schema import steps, trajectories

_SHOWN = select(
    *(trajectories.c.seq, trajectories.c.id, trajectories.c.task, trajectories.c.outcome),
    trajectories.c.status,
)


@dataclass(frozen=True, slots=True)
class TrajectoryText:
    """What a person may search for in a trajectory. The text of an open one may still grow."""

    seq: int
    id: str
    text: str
    is_open: bool


def list_seqs(
    pool: PoolReader, where: Filter = EVERYTHING, *, limit: int | None = None, before: int | None = None
) -> list[int]:
    """The `seq` numbers of matching trajectories, the newest first; only those before one, if given."""
    query = select(trajectories.c.seq).where(*where.build_conditions())
    if before is not None:
        query = query.where(trajectories.c.seq < before)
    query = query.order_by(trajectories.c.seq.desc()).limit(limit)
    return [int(seq) for seq in pool._db.read(lambda connection: connection.execute(query).scalars().all())]


def read_texts(pool: PoolReader, seqs: Sequence[int]) -> list[TrajectoryText]:
    """The texts of trajectories, in no order; those that are gone are left out."""
    return pool._db.read(partial(_read_texts, query=_SHOWN.where(trajectories.c.seq.in_(list(seqs)))))


def _read_texts(connection: Connection, query: Select[Any]) -> list[TrajectoryText]:
    rows = connection.execute(query).all()
    replies: dict[int, list[str]] = {row.seq: [] for row in rows}
    records = select(steps.c.trajectory, steps.c.record).where(steps.c.trajectory.in_(list(replies)))
    for seq, record in connection.execute(records.order_by(steps.c.trajectory, steps.c.number)):
        replies[seq].append(read_action_text(record))
    return [
        TrajectoryText(row.seq, row.id, _join_texts(row, replies[row.seq]), row.status is None)
        for row in rows
    ]


def _join_texts(row: Any, replies: Sequence[str]) -> str:
    _, content, instruction, *_ = json.loads(row.task)
    error = json.loads(row.outcome)[0] if row.outcome else ""
    return "\n".join((row.id, instruction, json.dumps(content, ensure_ascii=False), error, *replies))
