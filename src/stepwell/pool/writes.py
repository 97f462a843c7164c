"""The writes of producers, each as one piece of work in a write transaction.

    begin ─► append … append ─► finish          (reward, outcome and report at any time)

Invariants
* Every write may be repeated. The same content again changes nothing; different content is refused.
* Nothing is appended to a finished trajectory. PostgreSQL runs transactions in parallel, so an
  append holds a share lock on the trajectory, and `finish` an exclusive one.
* A group is complete when `size` of its trajectories have finished without an infrastructure
  failure. Which ones is decided once, as they finish (`place`). A group that is served again after
  a crash is therefore served with the same trajectories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from stepwell.core import JSON, Status, Step, Task
from stepwell.core.errors import InputError
from stepwell.pool.database import Database
from stepwell.pool.inputs import Completion, FullTrajectory, NewTrajectory
from stepwell.pool.outcomes import add_outcomes
from stepwell.pool.records import RowReader, encode_rows, encode_state, find_images
from stepwell.pool.results import RewardEntry
from stepwell.pool.reward_history import collect_corrections, sum_rewards, update_total
from stepwell.pool.schema import FILLING, READY, groups, images, reports, rewards, steps, tags, trajectories

_FIND = select(
    trajectories.c.seq, trajectories.c.group, trajectories.c.status, trajectories.c.path, trajectories.c.task,
    trajectories.c.channel,
).where(trajectories.c.id == bindparam("wanted_id"))  # fmt: skip
_FIND_LOCKED = {
    "": _FIND,
    "share": _FIND.with_for_update(read=True, of=trajectories),
    "exclusive": _FIND.with_for_update(of=trajectories),
}
_SUMMARY = select(
    steps.c.number, steps.c.reward, steps.c.reward_parts, steps.c.first_version, steps.c.last_version,
    func.length(steps.c.record).label("num_bytes"),
).order_by(steps.c.number)  # fmt: skip


def encode_task(task: Task) -> str:
    """A task as JSON; `decode_task` reads it."""
    return encode_json([task.env, task.content, task.instruction, task.seed, list(task.tags)], "task")


def encode_json(value: Any, field_name: str) -> str:
    """JSON in ASCII, which both databases store unchanged."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{field_name} cannot be written as JSON: {error}") from error


def find_trajectory(connection: Connection, id: str, *, lock: str = "") -> Any:
    """The row of a trajectory, locked ('share' or 'exclusive') if the database has row locks."""
    row = connection.execute(_FIND_LOCKED[lock], {"wanted_id": id}).first()
    if row is None:
        raise make_unknown_error(id)
    return row


def make_unknown_error(id: str) -> InputError:
    return InputError(f"trajectory {id!r} is not in the pool; begin it first")


def begin_trajectory(
    db: Database, connection: Connection, beginning: NewTrajectory, *, is_served: bool = True
) -> tuple[int, bool]:
    """Open a trajectory; returns its `seq` and whether it is new."""
    name = beginning.group or beginning.id
    group_seq, state = _ensure_group(db, connection, name, beginning)
    text = encode_task(beginning.task)
    new = {
        "id": beginning.id,
        "group": group_seq,
        "channel": str(beginning.channel),
        "env": beginning.task.env,
        "task_id": beginning.task.id,
        "task": text,
        "source": encode_json(dict(beginning.source), "source"),
        "created_s": beginning.created_s,
    }
    seq = connection.execute(db.insert_missing(trajectories, returning="seq"), new).scalar()
    if seq is None:
        found = find_trajectory(connection, beginning.id)
        if (found.task, found.group) != (text, group_seq):
            raise InputError(f"trajectory {beginning.id!r} exists with another task or group; use a new id")
        return int(found.seq), False
    if state != FILLING and is_served:
        raise InputError(f"group {name!r} is already complete; put {beginning.id!r} in another group")
    add_tags(db, connection, [int(seq)], beginning.tags)
    return int(seq), True


def _ensure_group(
    db: Database, connection: Connection, name: str, beginning: NewTrajectory
) -> tuple[int, str]:
    new = {
        "name": name,
        "channel": str(beginning.channel),
        "size": beginning.group_size,
        "num_finished": 0,
        "state": FILLING,
    }
    seq = connection.execute(db.insert_missing(groups, returning="seq"), new).scalar()
    if seq is not None:
        return int(seq), FILLING
    row = connection.execute(select(groups).where(groups.c.name == name)).one()
    if (row.channel, row.size) != (str(beginning.channel), beginning.group_size):
        raise InputError(
            f"group {name!r} has channel {row.channel!r} and size {row.size}; "
            f"got {str(beginning.channel)!r} and {beginning.group_size}"
        )
    return int(row.seq), row.state


def append_steps(
    db: Database,
    connection: Connection,
    id: str,
    new: Mapping[int, Step],
    encoded: tuple[int | None, list[dict[str, Any]]],
) -> tuple[int, bool]:
    """Insert rows of steps; returns the trajectory's `seq` and whether all rows are new.

    `encoded` was made outside the transaction, for the `seq` it names (None: for any). If the
    trajectory has another `seq`, the rows are encoded again.
    """
    find = db.prepare_statement("find and share", lambda: _FIND_LOCKED["share"])
    found = find(connection, [{"wanted_id": id}]).first()
    if found is None:
        raise make_unknown_error(id)
    seq, rows = encoded
    if seq is not None and seq != found.seq:
        rows, _ = encode_rows(new)
    num_new = 0
    if found.status is None:
        num_new = _insert_rows(db, connection, found.seq, rows)
        _add_images(
            db, connection, found.seq, set().union(*(find_images(step.state) for step in new.values()))
        )
    if num_new < len(rows):
        _check_same(connection, id, found, new)
    return int(found.seq), num_new == len(rows)


def _insert_rows(db: Database, connection: Connection, seq: int, rows: list[dict[str, Any]]) -> int:
    insert_steps = db.prepare_statement("insert steps", lambda: db.insert_missing(steps))
    return int(insert_steps(connection, [{"trajectory": seq, **row} for row in rows]).rowcount)


def _check_same(connection: Connection, id: str, found: Any, new: Mapping[int, Step]) -> None:
    """Refuse steps that differ from the stored ones; repeating the same append is fine."""
    reader = RowReader(connection.execute(select(steps).where(steps.c.trajectory == found.seq)))
    stored = set(reader.list_numbers())
    for number, step in new.items():
        if number not in stored:
            raise InputError(f"trajectory {id!r} is finished ({found.status}); step {number} is too late")
        if reader.get_step(number) != step:
            raise InputError(f"trajectory {id!r} already has a different step {number}; steps never change")


def _add_images(db: Database, connection: Connection, seq: int, keys: set[str]) -> None:
    if keys:
        rows = [{"trajectory": seq, "image": key} for key in sorted(keys)]
        connection.execute(db.insert_missing(images), rows)


def add_rewards(connection: Connection, id: str, entries: Sequence[RewardEntry]) -> None:
    """Insert values of reward parts and update the total of a finished trajectory."""
    found = find_trajectory(connection, id, lock="exclusive")
    path = json.loads(found.path) if found.path else None
    if found.status is not None or any(entry.step is not None for entry in entries):
        _check_rewarded(connection, id, found, path, entries)
    connection.execute(
        insert(rewards),
        [
            {
                "trajectory": found.seq,
                "number": entry.step,
                "part": entry.part,
                "value": entry.value,
                "source": entry.source,
                "created_s": entry.created_s,
            }
            for entry in entries
        ],
    )
    if found.status is not None:
        update_total(connection, found.seq, path)


def _check_rewarded(
    connection: Connection, id: str, found: Any, path: list[int] | None, entries: Sequence[RewardEntry]
) -> None:
    """Refuse a reward for a missing step; an open trajectory may get its last step later."""
    query = select(steps.c.number).where(steps.c.trajectory == found.seq).order_by(steps.c.number)
    stored = list(connection.execute(query).scalars())
    missing = {entry.step for entry in entries if entry.step is not None} - set(stored)
    if missing:
        raise InputError(f"trajectory {id!r} has no step {min(missing)}; it has {_describe_numbers(stored)}")
    if found.status is not None and not (stored if path is None else path):
        raise InputError(f"trajectory {id!r} finished without steps, so there is none to reward")


def _describe_numbers(numbers: Sequence[int]) -> str:
    return f"steps {numbers[0]} to {numbers[-1]}" if numbers else "none"


def add_report(connection: Connection, id: str, body: JSON, created_s: float) -> None:
    found = find_trajectory(connection, id)
    row = {"trajectory": found.seq, "body": encode_json(body, "report"), "created_s": created_s}
    connection.execute(insert(reports), row)


def finish_trajectory(
    db: Database, connection: Connection, id: str, completion: Completion, *, is_served: bool = True
) -> None:
    """Finish a trajectory, and complete its group if it was the last one missing."""
    found = find_trajectory(connection, id, lock="exclusive")
    if found.status is not None:
        if found.status != completion.status.value:
            raise InputError(f"trajectory {id!r} is already finished as {found.status}; it cannot change")
        return
    summary = connection.execute(_SUMMARY.where(steps.c.trajectory == found.seq)).all()
    path = _check_path(id, completion.path, [row.number for row in summary])
    served = [row for row in summary if row.number in set(path)]
    history = connection.execute(
        select(rewards.c.number, rewards.c.part, rewards.c.value)
        .where(rewards.c.trajectory == found.seq)
        .order_by(rewards.c.seq)
    ).all()
    unknown = set(collect_corrections(history, path)) - {row.number for row in summary}
    assert not unknown, f"rewards for missing steps {unknown} of {id}"
    final_state = encode_state(completion.final_state)
    counts = is_served and completion.status is not Status.INFRA_ERROR
    values = {
        "status": completion.status.value,
        "finished_s": completion.finished_s,
        "path": None if completion.path is None else json.dumps(path),
        "outcome": encode_json(
            [completion.error, dict(completion.timings), dict(completion.info)], "timings or info"
        ),
        "final_state": final_state,
        "place": _take_place(connection, found.group) if counts else None,
        "num_steps": len(summary),
        "num_bytes": sum(row.num_bytes for row in summary) + len(final_state or b""),
        "reward": sum_rewards(summary, history, path),
        "first_version": min((row.first_version for row in served), default=None),
        "last_version": max((row.last_version for row in served), default=None),
    }
    connection.execute(update(trajectories).where(trajectories.c.seq == found.seq).values(values))
    _add_images(db, connection, found.seq, find_images(completion.final_state))


def _check_path(id: str, path: Sequence[int] | None, stored: list[int]) -> list[int]:
    if path is None:
        return stored
    missing = sorted(set(path) - set(stored))
    if missing:
        raise InputError(
            f"path: trajectory {id!r} has no steps {missing}; it has {_describe_numbers(stored)}"
        )
    return list(path)


def _take_place(connection: Connection, group_seq: int) -> int | None:
    """Take the next place in the group for a finished trajectory; None if all are taken."""
    num_finished = groups.c.num_finished + 1
    is_last = (num_finished == groups.c.size) & (groups.c.state == FILLING)
    row = connection.execute(
        update(groups)
        .where(groups.c.seq == group_seq)
        .values(num_finished=num_finished, state=case((is_last, READY), else_=groups.c.state))
        .returning(groups.c.num_finished, groups.c.size)
    ).one()
    return row.num_finished if row.num_finished <= row.size else None


def add_trajectory(db: Database, connection: Connection, full: FullTrajectory) -> bool:
    """Store a trajectory from begin to finish; returns whether it is new. An existing one must be equal."""
    id = full.beginning.id
    _, is_new = begin_trajectory(db, connection, full.beginning, is_served=full.is_served)
    if full.rows:
        append_steps(db, connection, id, full.steps, (None, full.rows))
    if is_new and full.rewards:
        add_rewards(connection, id, full.rewards)
    if is_new and full.outcomes:
        add_outcomes(connection, find_trajectory(connection, id).seq, full.outcomes)
    for each in full.reports if is_new else ():
        add_report(connection, id, each.body, each.created_s)
    finish_trajectory(db, connection, id, full.completion, is_served=full.is_served)
    return is_new


def add_tags(db: Database, connection: Connection, seqs: Sequence[int], names: Sequence[str]) -> None:
    rows = [{"trajectory": seq, "tag": tag} for seq in seqs for tag in dict.fromkeys(names)]
    if rows:
        connection.execute(db.insert_missing(tags), rows)
