"""Whole trajectories at once: a few statements for all of them, instead of some for each.

A rollout hands over hundreds of finished trajectories whose ids and groups nobody has seen yet;
then every row can be written as it will be in the end. Where one of them is known already,
nothing is done here, and the trajectories go the common way (`producing`), one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.schema import Column, Table

from stepwell.core import Status, Trajectory
from stepwell.pool.database import Database
from stepwell.pool.producing import Ending, Opening, dumps, task_text
from stepwell.pool.records import encode_state, images_of
from stepwell.pool.schema import FILLING, READY, groups, images, steps, tags, trajectories


@dataclass(frozen=True, slots=True)
class Whole:
    """A finished trajectory with the rows of its steps."""

    opening: Opening
    trajectory: Trajectory
    rows: list[dict[str, Any]]
    ending: Ending

    @property
    def group(self) -> str:
        return self.opening.group or self.opening.id

    @property
    def is_counted(self) -> bool:
        return self.ending.status is not Status.INFRA_ERROR


def add_unknown(db: Database, connection: Connection, wholes: Sequence[Whole]) -> bool:
    """Write them all, or nothing and say False where an id or a group is known already."""
    with connection.begin_nested() as savepoint:
        written = _write(db, connection, wholes)
        if not written:
            savepoint.rollback()
    return written


def _write(db: Database, connection: Connection, wholes: Sequence[Whole]) -> bool:
    counts = Counter(whole.group for whole in wholes if whole.is_counted)
    by_name = {whole.group: _group_row(whole, counts[whole.group]) for whole in wholes}
    group_seqs = _insert(db, connection, groups, groups.c.name, list(by_name.values()))
    if len(group_seqs) < len(by_name):
        return False
    places: Counter[str] = Counter()
    rows = [_trajectory_row(whole, group_seqs[whole.group], places) for whole in wholes]
    seqs = _insert(db, connection, trajectories, trajectories.c.id, rows)
    if len(seqs) < len(rows):
        return False
    for table, entries in (
        (steps, [{"trajectory": seqs[w.opening.id], **row} for w in wholes for row in w.rows]),
        (
            tags,
            [
                {"trajectory": seqs[w.opening.id], "tag": t}
                for w in wholes
                for t in dict.fromkeys(w.opening.tags)
            ],
        ),
        (images, [{"trajectory": seqs[w.opening.id], "image": key} for w in wholes for key in _images(w)]),
    ):
        if entries:
            connection.execute(insert(table), entries)
    return True


def _group_row(whole: Whole, num_finished: int) -> dict[str, Any]:
    size = whole.opening.group_size
    return {
        "name": whole.group,
        "channel": str(whole.opening.channel),
        "size": size,
        "num_finished": num_finished,
        "state": READY if num_finished >= size else FILLING,
    }


def _trajectory_row(whole: Whole, group_seq: int, places: Counter[str]) -> dict[str, Any]:
    opening, ending = whole.opening, whole.ending
    place = None
    if whole.is_counted:
        places[whole.group] += 1
        place = places[whole.group] if places[whole.group] <= opening.group_size else None
    final_state = encode_state(ending.final_state)
    given = [row["reward"] for row in whole.rows if row["reward"] is not None]
    return {
        "id": opening.id,
        "group": group_seq,
        "channel": str(opening.channel),
        "env": opening.task.env,
        "task_id": opening.task.id,
        "task": task_text(opening.task),
        "source": dumps(dict(opening.source), "source"),
        "created_s": opening.created_s,
        "finished_s": ending.finished_s,
        "status": ending.status.value,
        "place": place,
        "outcome": dumps([ending.error, dict(ending.timings), dict(ending.info)], "timings or info"),
        "final_state": final_state,
        "num_steps": len(whole.rows),
        "num_bytes": sum(len(row["record"]) for row in whole.rows) + len(final_state or b""),
        "reward": float(sum(given)) if given else None,
        "first_version": min((row["first_version"] for row in whole.rows), default=None),
        "last_version": max((row["last_version"] for row in whole.rows), default=None),
    }


def _images(whole: Whole) -> list[str]:
    shown = set(images_of(whole.ending.final_state)).union(
        *(images_of(s.state) for s in whole.trajectory.steps)
    )
    return sorted(shown)


def _insert(
    db: Database, connection: Connection, table: Table, key: Column[str], rows: list[dict[str, Any]]
) -> dict[str, int]:
    """`seq` by key of the rows that were not there yet."""
    dialect = postgresql.insert if db.is_postgres else sqlite.insert
    statement = dialect(table).on_conflict_do_nothing().returning(key, table.c.seq)
    return {name: seq for name, seq in connection.execute(statement, rows)}
