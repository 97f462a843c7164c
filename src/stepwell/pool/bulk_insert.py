"""Insert many finished trajectories with a few statements for all of them.

A rollout hands over hundreds of finished trajectories with new ids and groups. Every row can then
be written in its final form. If any id or group exists already, nothing is written here, and the
trajectories are stored one by one (`writes`).
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
from stepwell.pool.outcomes import get_probability, make_outcome_row
from stepwell.pool.records import encode_state, find_images
from stepwell.pool.schema import FILLING, READY, groups, images, outcomes, steps, tags, trajectories
from stepwell.pool.writes import add_trajectory, encode_json, encode_task


def add_trajectories(db: Database, connection: Connection, batch: Sequence[FullTrajectory]) -> int:
    """Store them all and return how many are new."""
    if _are_plain(batch):
        with connection.begin_nested() as savepoint:
            if _write_unknown(db, connection, batch):
                return len(batch)
            savepoint.rollback()
    return sum(add_trajectory(db, connection, full) for full in batch)


def _are_plain(batch: Sequence[FullTrajectory]) -> bool:
    """Whether each has only steps, outcomes and an end, and each group one description and enough places."""
    counts = Counter(full.group for full in batch if full.is_counted)
    sizes = {full.group: full.beginning.group_size for full in batch}
    return all(
        not (full.rewards or full.reports)
        and full.is_served
        and full.completion.path is None
        and full.beginning.group_size == sizes[full.group] >= counts[full.group]
        and full.beginning.channel == batch[0].beginning.channel
        for full in batch
    )


def _write_unknown(db: Database, connection: Connection, batch: Sequence[FullTrajectory]) -> bool:
    """Write every row. Returns False, and must be rolled back, if an id or a group exists already."""
    counts = Counter(full.group for full in batch if full.is_counted)
    by_name = {full.group: _make_group_row(full, counts[full.group]) for full in batch}
    group_seqs = _insert_rows(db, connection, groups, groups.c.name, list(by_name.values()))
    if len(group_seqs) < len(by_name):
        return False
    places: Counter[str] = Counter()
    rows = [_make_trajectory_row(full, group_seqs[full.group], places) for full in batch]
    seqs = _insert_rows(db, connection, trajectories, trajectories.c.id, rows)
    if len(seqs) < len(rows):
        return False
    _write_parts(connection, [(seqs[full.beginning.id], full) for full in batch])
    return True


def _write_parts(connection: Connection, placed: Sequence[tuple[int, FullTrajectory]]) -> None:
    step_rows = [{"trajectory": seq, **row} for seq, full in placed for row in full.rows]
    tag_rows = [
        {"trajectory": seq, "tag": tag} for seq, full in placed for tag in dict.fromkeys(full.beginning.tags)
    ]
    judged_rows = [make_outcome_row(seq, each) for seq, full in placed for each in full.outcomes]
    image_rows = [{"trajectory": seq, "image": key} for seq, full in placed for key in _list_images(full)]
    tables = ((steps, step_rows), (tags, tag_rows), (outcomes, judged_rows), (images, image_rows))
    for table, rows in tables:
        if rows:
            connection.execute(insert(table), rows)


def _make_group_row(full: FullTrajectory, num_finished: int) -> dict[str, Any]:
    size = full.beginning.group_size
    return {
        "name": full.group,
        "channel": str(full.beginning.channel),
        "size": size,
        "num_finished": num_finished,
        "state": READY if num_finished >= size else FILLING,
    }


def _make_trajectory_row(full: FullTrajectory, group_seq: int, places: Counter[str]) -> dict[str, Any]:
    beginning, completion = full.beginning, full.completion
    places[full.group] += full.is_counted
    final_state = encode_state(completion.final_state)
    given = [row["reward"] for row in full.rows if row["reward"] is not None]
    return {
        "id": beginning.id,
        "group": group_seq,
        "channel": str(beginning.channel),
        "env": beginning.task.env,
        "task_id": beginning.task.id,
        "task": encode_task(beginning.task),
        "source": encode_json(dict(beginning.source), "source"),
        "created_s": beginning.created_s,
        "finished_s": completion.finished_s,
        "status": completion.status.value,
        "place": places[full.group] if full.is_counted else None,
        "outcome": encode_json(
            [completion.error, dict(completion.timings), dict(completion.info)], "timings or info"
        ),
        "final_state": final_state,
        "num_steps": len(full.rows),
        "num_bytes": sum(len(row["record"]) for row in full.rows) + len(final_state or b""),
        "reward": float(sum(given)) if given else None,
        "first_version": min((row["first_version"] for row in full.rows), default=None),
        "last_version": max((row["last_version"] for row in full.rows), default=None),
        "success_probability": get_probability(full.outcomes),
    }


def _list_images(full: FullTrajectory) -> list[str]:
    shown = set(find_images(full.completion.final_state)).union(
        *(find_images(step.state) for step in full.steps.values())
    )
    return sorted(shown)


def _insert_rows(
    db: Database, connection: Connection, table: Table, key: Column[str], rows: list[dict[str, Any]]
) -> dict[str, int]:
    """Insert rows and return `seq` by key, for those that are new."""
    dialect = postgresql.insert if db.is_postgres else sqlite.insert
    statement = dialect(table).on_conflict_do_nothing().returning(key, table.c.seq)
    return {name: seq for name, seq in connection.execute(statement, rows)}
