"""Judged outcomes of stored trajectories: every one is kept, the newest counts.

The probability of the newest outcome is also in the trajectory's own row, so that a filter needs no join.
It changes in the transaction that adds the outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, insert, or_, select, update

from stepwell.core import Outcome, Status
from stepwell.core.errors import InputError
from stepwell.core.outcome import SUCCESS_THRESHOLD
from stepwell.pool.results import OutcomeEntry
from stepwell.pool.schema import outcomes, trajectories


def assign_outcomes(connection: Connection, entries: Mapping[str, OutcomeEntry]) -> None:
    """Add an outcome of each trajectory, by id."""
    for id in sorted(entries):  # in one order, so that two writers never wait for each other
        _assign_outcome(connection, id, entries[id])


def _assign_outcome(connection: Connection, id: str, entry: OutcomeEntry) -> None:
    query = select(trajectories.c.seq).where(trajectories.c.id == id).with_for_update(of=trajectories)
    seq = connection.execute(query).scalar()
    if seq is None:
        raise InputError(f"trajectory {id!r} is not in the pool; begin it first")
    add_outcomes(connection, seq, [entry])


def add_outcomes(connection: Connection, seq: int, entries: Sequence[OutcomeEntry]) -> None:
    """Insert outcomes in their order; the last one counts."""
    connection.execute(insert(outcomes), [make_outcome_row(seq, entry) for entry in entries])
    newest = get_probability(entries)
    connection.execute(
        update(trajectories).where(trajectories.c.seq == seq).values(success_probability=newest)
    )


def get_probability(entries: Sequence[OutcomeEntry]) -> float | None:
    """The probability that counts; None without outcomes."""
    return entries[-1].outcome.success_probability if entries else None


def make_outcome_row(seq: int, entry: OutcomeEntry) -> dict[str, Any]:
    judged = entry.outcome
    return {
        "trajectory": seq,
        "success_probability": judged.success_probability,
        "source": str(judged.source),
        "judge": judged.judge,
        "created_s": entry.created_s,
    }


def read_outcomes(connection: Connection, rows: Sequence[Any]) -> dict[int, list[OutcomeEntry]]:
    """The outcomes of the given rows of `trajectories`, by `seq`, the oldest first."""
    found: dict[int, list[OutcomeEntry]] = defaultdict(list)
    seqs = [row.seq for row in rows if row.success_probability is not None]
    if not seqs:
        return found
    query = select(outcomes).where(outcomes.c.trajectory.in_(seqs)).order_by(outcomes.c.seq)
    for row in connection.execute(query):
        judged = Outcome(row.success_probability, row.source, row.judge)
        found[row.trajectory].append(OutcomeEntry(judged, row.created_s))
    return found


def build_success_conditions(is_success: bool) -> list[ColumnElement[bool]]:
    """The conditions under which a trajectory is solved, or is finished and not solved."""
    t = trajectories.c
    infra = Status.INFRA_ERROR.value
    if is_success:
        unjudged = and_(t.success_probability.is_(None), t.status == Status.SUCCESS.value)
        return [t.status != infra, or_(t.success_probability >= SUCCESS_THRESHOLD, unjudged)]
    unjudged = and_(t.success_probability.is_(None), t.status != Status.SUCCESS.value)
    return [t.status != infra, or_(t.success_probability < SUCCESS_THRESHOLD, unjudged)]
