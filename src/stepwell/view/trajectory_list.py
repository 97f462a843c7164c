"""The list of trajectories: filters from the address of the page, and one page of rows at a time.

All filters but text are conditions in SQL. Text is searched in what was stored (task, replies, error), newest
first, for at most `MAX_SEARCH_S` per page; the next page continues where the search stopped.

Invariant: a wrong filter (a number that is none) is an `InputError` that names the field.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from stepwell.core import Trajectory
from stepwell.core.errors import InputError
from stepwell.pool import Filter, Pool, TrajectorySummary

PAGE_SIZE = 50
MAX_SEARCH_S = 1.0
_SEARCHED_TOGETHER = 50
FIELDS = (
    "task",
    "env",
    "group",
    "status",
    "outcome",
    "channel",
    "min_version",
    "max_version",
    "min_reward",
    "max_reward",
    "tag",
    "text",
)


@dataclass(slots=True)
class TrajectoryRows:
    """One page of the list. `next` is the id after which the next page begins; `num_searched` counts a text
    search, which may stop early."""

    rows: list[TrajectorySummary] = field(default_factory=list)
    total: int | None = None
    next: str | None = None
    num_searched: int | None = None


def build_filter(given: Mapping[str, str]) -> Filter:
    """The filter that a query string describes; empty fields count as absent."""
    known = {name: value.strip() for name, value in given.items() if name in FIELDS and value.strip()}
    outcome = known.get("outcome")
    if outcome not in (None, "success", "failure", "open"):
        raise InputError(f"outcome: {outcome!r} is unknown; choose success, failure or open")
    return Filter(
        task_id=known.get("task"),
        env=known.get("env"),
        group=known.get("group"),
        channel=known.get("channel"),
        statuses=[known["status"]] if "status" in known else None,
        is_success={"success": True, "failure": False}.get(outcome or ""),
        is_open=True if outcome == "open" else None,
        tags=[known["tag"]] if "tag" in known else (),
        min_version=_read_integer(known, "min_version"),
        max_version=_read_integer(known, "max_version"),
        min_reward=_read_number(known, "min_reward"),
        max_reward=_read_number(known, "max_reward"),
    )


def find_rows(pool: Pool, given: Mapping[str, str], size: int = PAGE_SIZE) -> TrajectoryRows:
    """One page of trajectories, the newest first."""
    where, after, text = build_filter(given), given.get("after") or None, given.get("text", "").strip()
    if text:
        return _search_text(pool, where, after, text, size)
    rows = list(pool.find(where, newest_first=True, limit=size + 1, after=after))
    return TrajectoryRows(rows[:size], pool.count(where), rows[size - 1].id if len(rows) > size else None)


def _search_text(pool: Pool, where: Filter, after: str | None, text: str, size: int) -> TrajectoryRows:
    """Read part after part until the page is full or the time is over."""
    found, wanted, until = TrajectoryRows(num_searched=0), text.casefold(), time.monotonic() + MAX_SEARCH_S
    last, num_searched = after, 0
    while rows := list(pool.find(where, newest_first=True, limit=_SEARCHED_TOGETHER, after=last)):
        read = {each.id: each for each in pool.trajectories(Filter(ids=[row.id for row in rows]))}
        for row in rows:
            last, num_searched = row.id, num_searched + 1
            if wanted in row.id.casefold() or (row.id in read and _has_text(read[row.id], wanted)):
                found.rows.append(row)
            if len(found.rows) == size:
                break
        if len(found.rows) == size or time.monotonic() > until:
            found.next = last
            break
    found.num_searched = num_searched
    return found


def _has_text(trajectory: Trajectory, wanted: str) -> bool:
    task = trajectory.task
    texts = [task.instruction, json.dumps(task.content, default=str), trajectory.error]
    texts += [getattr(step.action, "text", "") for step in trajectory.steps]
    return any(wanted in text.casefold() for text in texts)


def _read_integer(given: Mapping[str, str], name: str) -> int | None:
    try:
        return int(given[name]) if name in given else None
    except ValueError:
        raise InputError(f"{name}: {given[name]!r} is not a whole number") from None


def _read_number(given: Mapping[str, str], name: str) -> float | None:
    try:
        return float(given[name]) if name in given else None
    except ValueError:
        raise InputError(f"{name}: {given[name]!r} is not a number") from None
