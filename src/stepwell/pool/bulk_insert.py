"""Whole trajectories at once: a few statements for all of them, instead of some for each.

A rollout hands over hundreds of finished trajectories whose ids and groups nobody has seen yet;
then every row can be written as it will be in the end. Where one of them is known already,
nothing is done here, and the trajectories go the common way (`producing`), one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.schema import Column, Table

from stepwell.pool.database import Database
from stepwell.pool.inputs import FullTrajectory
from stepwell.pool.records import encode_state, images_of
from stepwell.pool.schema import FILLING, READY, groups, images, steps, tags, trajectories
from stepwell.pool.writes import add_whole, dumps, task_text


def add_wholes(db: Database, connection: Connection, wholes: Sequence[FullTrajectory]) -> int:
    """Store them all; gives how many were not there yet."""
    if _are_plain(wholes):
        with connection.begin_nested() as savepoint:
            if _write_unknown(db, connection, wholes):
                return len(wholes)
            savepoint.rollback()
    return sum(add_whole(db, connection, whole) for whole in wholes)


def _are_plain(wholes: Sequence[FullTrajectory]) -> bool:
    """Whether each is just its steps and its end, and no group holds too many or is described twice."""
    counts = Counter(whole.group for whole in wholes if whole.is_counted)
    sizes = {whole.group: whole.opening.group_size for whole in wholes}
    return all(
        not (whole.rewards or whole.reports)
        and whole.is_served
        and whole.ending.path is None
        and whole.opening.group_size == sizes[whole.group] >= counts[whole.group]
        and whole.opening.channel == wholes[0].opening.channel
        for whole in wholes
    )


def _write_unknown(db: Database, connection: Connection, wholes: Sequence[FullTrajectory]) -> bool:
    """Write every row; False (and to be rolled back) where an id or a group is known already."""
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
    _write_parts(connection, [(seqs[whole.opening.id], whole) for whole in wholes])
    return True


def _write_parts(connection: Connection, placed: Sequence[tuple[int, FullTrajectory]]) -> None:
    step_rows = [{"trajectory": seq, **row} for seq, whole in placed for row in whole.rows]
    tag_rows = [
        {"trajectory": seq, "tag": tag} for seq, whole in placed for tag in dict.fromkeys(whole.opening.tags)
    ]
    image_rows = [{"trajectory": seq, "image": key} for seq, whole in placed for key in _images(whole)]
    for table, rows in ((steps, step_rows), (tags, tag_rows), (images, image_rows)):
        if rows:
            connection.execute(insert(table), rows)


def _group_row(whole: FullTrajectory, num_finished: int) -> dict[str, Any]:
    size = whole.opening.group_size
    return {
        "name": whole.group,
        "channel": str(whole.opening.channel),
        "size": size,
        "num_finished": num_finished,
        "state": READY if num_finished >= size else FILLING,
    }


def _trajectory_row(whole: FullTrajectory, group_seq: int, places: Counter[str]) -> dict[str, Any]:
    opening, ending = whole.opening, whole.ending
    places[whole.group] += whole.is_counted
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
        "place": places[whole.group] if whole.is_counted else None,
        "outcome": dumps([ending.error, dict(ending.timings), dict(ending.info)], "timings or info"),
        "final_state": final_state,
        "num_steps": len(whole.rows),
        "num_bytes": sum(len(row["record"]) for row in whole.rows) + len(final_state or b""),
        "reward": float(sum(given)) if given else None,
        "first_version": min((row["first_version"] for row in whole.rows), default=None),
        "last_version": max((row["last_version"] for row in whole.rows), default=None),
    }


def _images(whole: FullTrajectory) -> list[str]:
    shown = set(images_of(whole.ending.final_state)).union(
        *(images_of(step.state) for step in whole.steps.values())
    )
    return sorted(shown)


def _insert(
    db: Database, connection: Connection, table: Table, key: Column[str], rows: list[dict[str, Any]]
) -> dict[str, int]:
    """`seq` by key of the rows that were not there yet."""
    dialect = postgresql.insert if db.is_postgres else sqlite.insert
    statement = dialect(table).on_conflict_do_nothing().returning(key, table.c.seq)
    return {name: seq for name, seq in connection.execute(statement, rows)}
