"""Read trajectories and their summaries, page by page so that no reader blocks a writer.

SQLite cannot reset its log while a reader uses it. So no transaction stays open while the caller
works: lists are read in pages, and each page continues after the last `seq` of the previous one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select

from stepwell.core import Outcome, Status, Step, Task, Trajectory
from stepwell.core.errors import InputError
from stepwell.pool.database import Database
from stepwell.pool.filters import Filter
from stepwell.pool.outcomes import read_outcomes
from stepwell.pool.records import RowReader, decode_state
from stepwell.pool.results import (
    Channel,
    OutcomeEntry,
    RewardEntry,
    StoredTrajectory,
    TrajectoryReport,
    TrajectorySummary,
)
from stepwell.pool.reward_history import apply_corrections, collect_corrections
from stepwell.pool.schema import groups, reports, rewards, steps, tags, trajectories

_PAGE = 500
_STEPS_PER_PAGE = 500  # of whole trajectories: bounds memory, and how long the first one takes
_ROWS: Select[Any] = select(
    trajectories,
    groups.c.name.label("group_name"),
    groups.c.size.label("group_size"),
    groups.c.state.label("state"),
).join(groups, groups.c.seq == trajectories.c.group)
_STEPS = select(steps.c.trajectory, steps.c.number, steps.c.base, steps.c.shared, steps.c.record)


_KNOWN = select(trajectories.c.seq).where(trajectories.c.id == bindparam("wanted_id"))


def has_trajectory(db: Database, id: str) -> bool:
    """Whether the trajectory exists; fast enough to ask on every call."""
    known = db.prepare_statement("known", lambda: _KNOWN)
    return db.read(lambda connection: known(connection, [{"wanted_id": id}]).first() is not None)


def count_trajectories(db: Database, where: Filter) -> int:
    """The number of matching trajectories."""
    query = select(func.count()).select_from(trajectories).where(*where.build_conditions())
    return int(db.read(lambda connection: connection.execute(query).scalar_one()))


def find_summaries(
    db: Database, where: Filter, *, newest_first: bool, limit: int | None, after: str | None = None
) -> Iterator[TrajectorySummary]:
    """Summaries in order of creation, or from the newest on; those that come `after` a trajectory."""
    last = None if after is None else _find_seq(db, after)
    for page in _read_pages(db, where, newest_first=newest_first, limit=limit, last=last):
        yield from page


def _find_seq(db: Database, id: str) -> int:
    query = select(trajectories.c.seq).where(trajectories.c.id == id)
    seq = db.read(lambda connection: connection.execute(query).scalar())
    if seq is None:
        raise InputError(
            f"after: trajectory {id!r} is not in the pool, or was removed; begin at the first page"
        )
    return int(seq)


def _read_pages(
    db: Database,
    where: Filter,
    *,
    newest_first: bool = False,
    limit: int | None = None,
    last: int | None = None,
) -> Iterator[list[TrajectorySummary]]:
    build_conditions = where.build_conditions()
    order = trajectories.c.seq.desc() if newest_first else trajectories.c.seq
    while limit is None or limit > 0:
        query = _ROWS.where(*build_conditions).order_by(order).limit(min(_PAGE, limit or _PAGE))
        if last is not None:
            query = query.where(trajectories.c.seq < last if newest_first else trajectories.c.seq > last)
        rows, entries = db.read(partial(_read_page, query=query))
        if not rows:
            return
        last = rows[-1].seq
        limit = None if limit is None else limit - len(rows)
        yield entries


def _read_page(connection: Connection, query: Select[Any]) -> tuple[Sequence[Any], list[TrajectorySummary]]:
    rows = connection.execute(query).all()
    return rows, _make_summaries(connection, rows)


def _make_summaries(connection: Connection, rows: Sequence[Any]) -> list[TrajectorySummary]:
    seqs = [row.seq for row in rows]
    tagged = _group_by_trajectory(connection.execute(select(tags).where(tags.c.trajectory.in_(seqs))))
    counts = _count_open(connection, [row.seq for row in rows if row.status is None])
    judged = read_outcomes(connection, rows)
    return [
        _make_summary(
            row,
            tuple(sorted(each.tag for each in tagged[row.seq])),
            counts.get(row.seq),
            _get_newest(judged[row.seq]),
        )
        for row in rows
    ]


def _count_open(connection: Connection, seqs: list[int]) -> dict[int, tuple[int, int]]:
    """Steps and bytes of trajectories that are still open."""
    if not seqs:
        return {}
    query = (
        select(
            steps.c.trajectory, func.count().label("num"), func.sum(func.length(steps.c.record)).label("size")
        )
        .where(steps.c.trajectory.in_(seqs))
        .group_by(steps.c.trajectory)
    )
    return {row.trajectory: (row.num, int(row.size)) for row in connection.execute(query)}


def _get_newest(judged: Sequence[OutcomeEntry]) -> Outcome | None:
    return judged[-1].outcome if judged else None


def _make_summary(
    row: Any, tag_names: tuple[str, ...], counts: tuple[int, int] | None, outcome: Outcome | None
) -> TrajectorySummary:
    num_steps, num_bytes = counts or (row.num_steps or 0, row.num_bytes or 0)
    return TrajectorySummary(
        id=row.id,
        channel=Channel(row.channel),
        group=_read_group_name(row),
        group_size=row.group_size,
        state=row.state,
        env=row.env,
        task_id=row.task_id,
        status=None if row.status is None else Status(row.status),
        is_served=row.place is not None,
        num_steps=num_steps,
        num_bytes=num_bytes,
        reward=row.reward,
        first_version=row.first_version,
        last_version=row.last_version,
        created_s=row.created_s,
        finished_s=row.finished_s,
        tags=tag_names,
        outcome=outcome,
    )


def _read_group_name(row: Any) -> str:
    """The group's name; empty for a trajectory in its own group, as in the record."""
    return "" if row.group_name == row.id else str(row.group_name)


def _group_by_trajectory(rows: Iterable[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        found[row.trajectory].append(row)
    return found


def decode_task(text: str) -> Task:
    env, content, instruction, seed, tag_names = json.loads(text)
    return Task(env, content, instruction, seed, tuple(tag_names))


def get_trajectory(db: Database, id: str, *, with_branches: bool) -> StoredTrajectory:
    """One trajectory with everything about it; `with_branches`: also the steps off its path."""
    found = db.read(
        partial(_read_stored, query=_ROWS.where(trajectories.c.id == id), with_branches=with_branches)
    )
    if not found:
        raise InputError(f"trajectory {id!r} is not in the pool")
    return found[0]


def iter_stored(db: Database, where: Filter, *, with_branches: bool = True) -> Iterator[StoredTrajectory]:
    """Trajectories with everything about them, in order of creation."""
    for ids in _read_id_pages(db, where):
        query = _ROWS.where(trajectories.c.id.in_(ids)).order_by(trajectories.c.seq)
        yield from db.read(partial(_read_stored, query=query, with_branches=with_branches))


def iter_trajectories(db: Database, where: Filter) -> Iterator[Trajectory]:
    """Trajectories (their paths) in order of creation."""
    for ids in _read_id_pages(db, where):
        query = _ROWS.where(trajectories.c.id.in_(ids)).order_by(trajectories.c.seq)
        for _, trajectory in db.read(partial(_read_trajectories, query=query)):
            yield trajectory


def _read_id_pages(db: Database, where: Filter) -> Iterator[list[str]]:
    """Pages of ids of trajectories to read together."""
    ids: list[str] = []
    num_steps = 0
    for page in _read_pages(db, where):
        for entry in page:
            ids.append(entry.id)
            num_steps += entry.num_steps
            if num_steps >= _STEPS_PER_PAGE or len(ids) >= _PAGE:
                yield ids
                ids, num_steps = [], 0
    if ids:
        yield ids


def read_groups(db: Database, group_seqs: Sequence[int]) -> dict[int, list[Trajectory]]:
    """The trajectories that make each group complete, in order of creation."""
    found: dict[int, list[Trajectory]] = {seq: [] for seq in group_seqs}
    wanted = list(group_seqs)  # for both tables: a planner without statistics would read all groups
    query = _ROWS.where(
        trajectories.c.group.in_(wanted), groups.c.seq.in_(wanted), trajectories.c.place.is_not(None)
    )
    for group, trajectory in db.read(partial(_read_trajectories, query=query.order_by(trajectories.c.seq))):
        found[group].append(trajectory)
    return found


def _read_trajectories(connection: Connection, query: Select[Any]) -> list[tuple[int, Trajectory]]:
    """Trajectories (their paths), each with the `seq` of its group."""
    rows = connection.execute(query).all()
    step_rows, history = _read_parts(connection, rows)
    judged = read_outcomes(connection, rows)
    found = []
    for row in rows:
        trajectory, _ = _build_trajectory(row, RowReader(step_rows[row.seq]), history[row.seq])
        trajectory.outcome = _get_newest(judged[row.seq])
        found.append((row.group, trajectory))
    return found


def _read_parts(
    connection: Connection, rows: Sequence[Any]
) -> tuple[dict[int, list[Any]], dict[int, list[Any]]]:
    seqs = [row.seq for row in rows]
    step_rows = _group_by_trajectory(connection.execute(_STEPS.where(steps.c.trajectory.in_(seqs))))
    query = select(rewards).where(rewards.c.trajectory.in_(seqs)).order_by(rewards.c.seq)
    return step_rows, _group_by_trajectory(connection.execute(query))


def _build_trajectory(
    row: Any, reader: RowReader, history: Sequence[Any], *, with_branches: bool = False
) -> tuple[Trajectory, list[int]]:
    """A trajectory with its current rewards, and the numbers of its steps."""
    numbers = reader.list_numbers()
    path = json.loads(row.path) if row.path else numbers
    newest = collect_corrections(history, path)
    chosen = numbers if with_branches else path
    error, timings, info = json.loads(row.outcome) if row.outcome else ("", {}, {})
    built = Trajectory(
        task=decode_task(row.task),
        steps=[_correct_step(reader.get_step(number), newest.get(number, {})) for number in chosen],
        status=Status(row.status) if row.status else Status.TRUNCATED,
        group=_read_group_name(row),
        final_state=decode_state(row.final_state),
        error=error,
        timings=timings,
        info=info,
        id=row.id,
    )
    return built, chosen


def _correct_step(step: Step, newest: dict[str, float]) -> Step:
    apply_corrections(step, newest)
    return step


def _read_stored(
    connection: Connection, query: Select[Any], *, with_branches: bool
) -> list[StoredTrajectory]:
    rows = connection.execute(query).all()
    step_rows, history = _read_parts(connection, rows)
    seqs = [row.seq for row in rows]
    bodies = select(reports).where(reports.c.trajectory.in_(seqs)).order_by(reports.c.seq)
    said = _group_by_trajectory(connection.execute(bodies))
    judged = read_outcomes(connection, rows)
    found = []
    for row, entry in zip(rows, _make_summaries(connection, rows), strict=True):
        trajectory, numbers = _build_trajectory(
            row, RowReader(step_rows[row.seq]), history[row.seq], with_branches=with_branches
        )
        trajectory.outcome = entry.outcome
        found.append(
            StoredTrajectory(
                trajectory=trajectory,
                entry=entry,
                numbers=tuple(numbers),
                path=tuple(json.loads(row.path)) if row.path else None,
                source=json.loads(row.source),
                reports=tuple(
                    TrajectoryReport(json.loads(each.body), each.created_s) for each in said[row.seq]
                ),
                reward_history=tuple(
                    RewardEntry(each.number, each.part, each.value, each.source, each.created_s)
                    for each in history[row.seq]
                ),
                outcome_history=tuple(judged[row.seq]),
            )
        )
    return found
