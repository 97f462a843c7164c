"""The list of trajectories: filters from the address of the page, and one page of rows at a time.

All filters but text are conditions in SQL. Text is searched in what was stored (id, task, replies, error),
newest first, for at most `MAX_SEARCH_S` per page; the next page continues where the search stopped. What was
read once is in memory (`text_index.py`).

Invariant: a wrong filter (a number that is none) is an `InputError` that names the field.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from stepwell.core.errors import InputError
from stepwell.pool import Filter, Pool, TrajectorySummary
from stepwell.pool.texts import list_seqs
from stepwell.view.text_index import TextIndex

PAGE_SIZE = 50
MAX_SEARCH_S = 0.25
_SEARCHED_TOGETHER = 50
_LISTED_TOGETHER = 100_000
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


def build_filter(query: Mapping[str, str]) -> Filter:
    """The filter that a query string describes; empty fields count as absent."""
    known = {name: value.strip() for name, value in query.items() if name in FIELDS and value.strip()}
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


def find_rows(
    pool: Pool, query: Mapping[str, str], size: int = PAGE_SIZE, index: TextIndex | None = None
) -> TrajectoryRows:
    """One page of trajectories, the newest first; `index` keeps texts for the next search."""
    where, after, text = build_filter(query), query.get("after") or None, query.get("text", "").strip()
    if text:
        return _search_text(pool, index or TextIndex(pool), where, after, text.casefold(), size)
    rows = list(pool.find(where, newest_first=True, limit=size + 1, after=after))
    return TrajectoryRows(rows[:size], pool.count(where), rows[size - 1].id if len(rows) > size else None)


def _search_text(
    pool: Pool, index: TextIndex, where: Filter, after: str | None, wanted: str, size: int
) -> TrajectoryRows:
    """Read part after part until the page is full or the time is over."""
    before, until = _find_seq(pool, after), time.monotonic() + MAX_SEARCH_S
    seqs = list_seqs(pool, where, limit=_LISTED_TOGETHER, before=before)
    ids, last, num_searched = [], None, 0
    for start in range(0, len(seqs), _SEARCHED_TOGETHER):
        texts = index.get_texts(part := seqs[start : start + _SEARCHED_TOGETHER])
        for seq in part:
            num_searched += 1
            if seq not in texts:
                continue
            last, text = texts[seq]
            if wanted in text:
                ids.append(last)
            if len(ids) == size:
                break
        if len(ids) == size or time.monotonic() > until:
            break
    rows = list(pool.find(Filter(ids=ids), newest_first=True)) if ids else []
    is_done = num_searched == len(seqs) < _LISTED_TOGETHER
    return TrajectoryRows(rows, None, None if is_done else last, num_searched)


def _find_seq(pool: Pool, id: str | None) -> int | None:
    if id is None:
        return None
    seqs = list_seqs(pool, Filter(ids=[id]))
    if not seqs:
        raise InputError(
            f"after: trajectory {id!r} is not in the pool, or was removed; begin at the first page"
        )
    return seqs[0]


def _read_integer(query: Mapping[str, str], name: str) -> int | None:
    try:
        return int(query[name]) if name in query else None
    except ValueError:
        raise InputError(f"{name}: {query[name]!r} is not a whole number") from None


def _read_number(query: Mapping[str, str], name: str) -> float | None:
    try:
        return float(query[name]) if name in query else None
    except ValueError:
        raise InputError(f"{name}: {query[name]!r} is not a number") from None
