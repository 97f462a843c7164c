"""What producers do to a pool, each as one piece of work in a write transaction.

    begin ─► append … append ─► finish          (reward and report at any time)

Invariants
* All of it may be repeated: what is there already with the same content is kept, with another
  content it is refused.
* Nothing is appended to a finished trajectory. PostgreSQL runs transactions side by side, so an
  append holds a share lock on the trajectory, which `finish` takes alone.
* A group is complete when `size` of its trajectories have finished without an infrastructure
  failure. Which ones is decided once, as they finish (`place`): a group that is served again after
  a crash is served with the same trajectories.
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
from stepwell.pool.records import RowReader, encode_rows, encode_state, images_of
from stepwell.pool.results import RewardEntry
from stepwell.pool.reward_history import corrections, sum_again, summed
from stepwell.pool.schema import FILLING, READY, groups, images, reports, rewards, steps, tags, trajectories

_FIND = select(
    trajectories.c.seq, trajectories.c.group, trajectories.c.status, trajectories.c.path, trajectories.c.task,
    trajectories.c.channel,
).where(trajectories.c.id == bindparam("wanted_id"))  # fmt: skip
_FIND_LOCKED = {
    "": _FIND,
    "share": _FIND.with_for_update(read=True, of=trajectories),
    "alone": _FIND.with_for_update(of=trajectories),
}
_SUMMARY = select(
    steps.c.number, steps.c.reward, steps.c.reward_parts, steps.c.first_version, steps.c.last_version,
    func.length(steps.c.record).label("num_bytes"),
).order_by(steps.c.number)  # fmt: skip


def task_text(task: Task) -> str:
    """A task as JSON; `task_of` reads it."""
    return dumps([task.env, task.content, task.instruction, task.seed, list(task.tags)], "task")


def dumps(value: Any, field_name: str) -> str:
    """JSON in ASCII, which both databases keep as it is."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{field_name} holds what JSON cannot keep: {error}") from error


def find_trajectory(connection: Connection, id: str, *, lock: str = "") -> Any:
    """The row of a trajectory, locked ('share' or 'alone') where the database has row locks."""
    row = connection.execute(_FIND_LOCKED[lock], {"wanted_id": id}).first()
    if row is None:
        raise unknown_trajectory(id)
    return row


def unknown_trajectory(id: str) -> InputError:
    return InputError(f"trajectory {id!r} is not in the pool; begin it first")


def begin(
    db: Database, connection: Connection, opening: NewTrajectory, *, is_served: bool = True
) -> tuple[int, bool]:
    """An open trajectory; gives its `seq` and whether it is new."""
    name = opening.group or opening.id
    group_seq, state = _group(db, connection, name, opening)
    text = task_text(opening.task)
    new = {
        "id": opening.id,
        "group": group_seq,
        "channel": str(opening.channel),
        "env": opening.task.env,
        "task_id": opening.task.id,
        "task": text,
        "source": dumps(dict(opening.source), "source"),
        "created_s": opening.created_s,
    }
    seq = connection.execute(db.insert_missing(trajectories, returning="seq"), new).scalar()
    if seq is None:
        found = find_trajectory(connection, opening.id)
        if (found.task, found.group) != (text, group_seq):
            raise InputError(
                f"trajectory {opening.id!r} is in the pool with another task or group; use a new id"
            )
        return int(found.seq), False
    if state != FILLING and is_served:
        raise InputError(f"group {name!r} is complete already; give {opening.id!r} a group of its own")
    add_tags(db, connection, [int(seq)], opening.tags)
    return int(seq), True


def _group(db: Database, connection: Connection, name: str, opening: NewTrajectory) -> tuple[int, str]:
    new = {
        "name": name,
        "channel": str(opening.channel),
        "size": opening.group_size,
        "num_finished": 0,
        "state": FILLING,
    }
    seq = connection.execute(db.insert_missing(groups, returning="seq"), new).scalar()
    if seq is not None:
        return int(seq), FILLING
    row = connection.execute(select(groups).where(groups.c.name == name)).one()
    if (row.channel, row.size) != (str(opening.channel), opening.group_size):
        raise InputError(
            f"group {name!r} has channel {row.channel!r} and size {row.size}; "
            f"got {str(opening.channel)!r} and {opening.group_size}"
        )
    return int(row.seq), row.state


def append(
    db: Database,
    connection: Connection,
    id: str,
    new: Mapping[int, Step],
    encoded: tuple[int | None, list[dict[str, Any]]],
) -> tuple[int, bool]:
    """Rows of steps; gives the trajectory's `seq` and whether the rows are new.

    `encoded` was made outside of the transaction, for the `seq` it names (None: for any); where the
    trajectory has another one, it is made again.
    """
    find = db.prepared("find and share", lambda: _FIND_LOCKED["share"])
    found = find(connection, [{"wanted_id": id}]).first()
    if found is None:
        raise unknown_trajectory(id)
    seq, rows = encoded
    if seq is not None and seq != found.seq:
        rows, _ = encode_rows(new)
    num_new = 0
    if found.status is None:
        num_new = _insert_rows(db, connection, found.seq, rows)
        _add_images(db, connection, found.seq, set().union(*(images_of(step.state) for step in new.values())))
    if num_new < len(rows):
        _check_same(connection, id, found, new)
    return int(found.seq), num_new == len(rows)


def _insert_rows(db: Database, connection: Connection, seq: int, rows: list[dict[str, Any]]) -> int:
    insert_steps = db.prepared("insert steps", lambda: db.insert_missing(steps))
    return int(insert_steps(connection, [{"trajectory": seq, **row} for row in rows]).rowcount)


def _check_same(connection: Connection, id: str, found: Any, new: Mapping[int, Step]) -> None:
    """Refuse steps that are not what is stored; a repeated append with the same ones is fine."""
    reader = RowReader(connection.execute(select(steps).where(steps.c.trajectory == found.seq)))
    stored = set(reader.numbers())
    for number, step in new.items():
        if number not in stored:
            raise InputError(f"trajectory {id!r} is finished ({found.status}); step {number} comes too late")
        if reader.step(number) != step:
            raise InputError(f"trajectory {id!r} has another step {number} already; steps never change")


def _add_images(db: Database, connection: Connection, seq: int, keys: set[str]) -> None:
    if keys:
        rows = [{"trajectory": seq, "image": key} for key in sorted(keys)]
        connection.execute(db.insert_missing(images), rows)


def reward(connection: Connection, id: str, given: Sequence[RewardEntry]) -> None:
    """Values of reward parts; the sum of a finished trajectory follows."""
    found = find_trajectory(connection, id, lock="alone")
    path = json.loads(found.path) if found.path else None
    if found.status is not None or any(entry.step is not None for entry in given):
        _check_rewarded(connection, id, found, path, given)
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
            for entry in given
        ],
    )
    if found.status is not None:
        sum_again(connection, found.seq, path)


def _check_rewarded(
    connection: Connection, id: str, found: Any, path: list[int] | None, given: Sequence[RewardEntry]
) -> None:
    """Refuse a reward for a step that is not there; an open trajectory may get its last step later."""
    query = select(steps.c.number).where(steps.c.trajectory == found.seq).order_by(steps.c.number)
    stored = list(connection.execute(query).scalars())
    missing = {entry.step for entry in given if entry.step is not None} - set(stored)
    if missing:
        raise InputError(f"trajectory {id!r} has no step {min(missing)}; it has {_shown(stored)}")
    if found.status is not None and not (stored if path is None else path):
        raise InputError(f"trajectory {id!r} is finished without a step that could be rewarded")


def _shown(numbers: Sequence[int]) -> str:
    return f"steps {numbers[0]} to {numbers[-1]}" if numbers else "none"


def report(connection: Connection, id: str, body: JSON, created_s: float) -> None:
    found = find_trajectory(connection, id)
    row = {"trajectory": found.seq, "body": dumps(body, "report"), "created_s": created_s}
    connection.execute(insert(reports), row)


def finish(
    db: Database, connection: Connection, id: str, ending: Completion, *, is_served: bool = True
) -> None:
    """Close a trajectory, and complete its group if it was the last one missing."""
    found = find_trajectory(connection, id, lock="alone")
    if found.status is not None:
        if found.status != ending.status.value:
            raise InputError(f"trajectory {id!r} is finished already, as {found.status}; it cannot change")
        return
    summary = connection.execute(_SUMMARY.where(steps.c.trajectory == found.seq)).all()
    path = _checked_path(id, ending.path, [row.number for row in summary])
    served = [row for row in summary if row.number in set(path)]
    history = connection.execute(
        select(rewards.c.number, rewards.c.part, rewards.c.value)
        .where(rewards.c.trajectory == found.seq)
        .order_by(rewards.c.seq)
    ).all()
    unknown = set(corrections(history, path)) - {row.number for row in summary}
    assert not unknown, f"rewards of steps {unknown} that {id} does not have"
    final_state = encode_state(ending.final_state)
    counts = is_served and ending.status is not Status.INFRA_ERROR
    values = {
        "status": ending.status.value,
        "finished_s": ending.finished_s,
        "path": None if ending.path is None else json.dumps(path),
        "outcome": dumps([ending.error, dict(ending.timings), dict(ending.info)], "timings or info"),
        "final_state": final_state,
        "place": _place(connection, found.group) if counts else None,
        "num_steps": len(summary),
        "num_bytes": sum(row.num_bytes for row in summary) + len(final_state or b""),
        "reward": summed(summary, history, path),
        "first_version": min((row.first_version for row in served), default=None),
        "last_version": max((row.last_version for row in served), default=None),
    }
    connection.execute(update(trajectories).where(trajectories.c.seq == found.seq).values(values))
    _add_images(db, connection, found.seq, images_of(ending.final_state))


def _checked_path(id: str, path: Sequence[int] | None, stored: list[int]) -> list[int]:
    if path is None:
        return stored
    missing = sorted(set(path) - set(stored))
    if missing:
        raise InputError(f"path: trajectory {id!r} has no steps {missing}; it has {_shown(stored)}")
    return list(path)


def _place(connection: Connection, group_seq: int) -> int | None:
    """Which of its group's places a finished trajectory takes; None where all are taken."""
    num_finished = groups.c.num_finished + 1
    is_last = (num_finished == groups.c.size) & (groups.c.state == FILLING)
    row = connection.execute(
        update(groups)
        .where(groups.c.seq == group_seq)
        .values(num_finished=num_finished, state=case((is_last, READY), else_=groups.c.state))
        .returning(groups.c.num_finished, groups.c.size)
    ).one()
    return row.num_finished if row.num_finished <= row.size else None


def add_whole(db: Database, connection: Connection, whole: FullTrajectory) -> bool:
    """A trajectory from begin to finish; whether it is new. One that is there must be the same."""
    id = whole.opening.id
    _, is_new = begin(db, connection, whole.opening, is_served=whole.is_served)
    if whole.rows:
        append(db, connection, id, whole.steps, (None, whole.rows))
    if is_new and whole.rewards:
        reward(connection, id, whole.rewards)
    for each in whole.reports if is_new else ():
        report(connection, id, each.body, each.created_s)
    finish(db, connection, id, whole.ending, is_served=whole.is_served)
    return is_new


def add_tags(db: Database, connection: Connection, seqs: Sequence[int], names: Sequence[str]) -> None:
    rows = [{"trajectory": seq, "tag": tag} for seq in seqs for tag in dict.fromkeys(names)]
    if rows:
        connection.execute(db.insert_missing(tags), rows)
