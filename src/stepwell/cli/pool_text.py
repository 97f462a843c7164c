"""What `stepwell pool` prints: rows, JSON and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.core import Outcome
    from stepwell.pool import StoredTrajectory, TrajectorySummary

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
"""Seconds in each unit of an age."""


def format_row(entry: TrajectorySummary) -> tuple[str, ...]:
    versions = {entry.first_version, entry.last_version} - {None}
    return (
        entry.id,
        entry.channel.value,
        f"{entry.env} {entry.task_id[:8]}",
        "open" if entry.status is None else entry.status.value,
        format_outcome(entry.outcome),
        f"{entry.num_steps}",
        format_number(entry.reward),
        "–" if not versions else "-".join(map(str, sorted(versions))),  # type: ignore[type-var]
        f"{entry.group} ({entry.state})",
        format_age(time.time() - entry.created_s),
        ", ".join(entry.tags),
    )


def format_outcome(outcome: Outcome | None) -> str:
    """A judged outcome on one line."""
    if outcome is None:
        return "–"
    by = f", {outcome.judge}" if outcome.judge else ""
    return f"{outcome.success_probability:.2f} ({outcome.source}{by})"


def summary_to_json(entry: TrajectorySummary) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(entry)


def trajectory_to_json(stored: StoredTrajectory) -> dict[str, Any]:
    from dataclasses import asdict

    steps = [
        {
            "number": number,
            "prompt_ids": _list_ids(step.state, "prompt_ids"),
            "action_ids": _list_ids(step.action, "action_ids"),
            "text": getattr(step.action, "text", ""),
            "behavior_logprobs": step.behavior_logprobs.tolist(),
            "reward": step.reward,
            "reward_parts": step.reward_parts,
            "policy_version": [step.policy_version.first, step.policy_version.last],
            "info": step.info,
        }
        for number, step in zip(stored.numbers, stored.trajectory.steps, strict=True)
    ]
    history = [
        {"step": r.step, "part": r.part, "value": r.value, "source": r.source} for r in stored.reward_history
    ]
    return {
        **summary_to_json(stored.entry),
        "task": stored.trajectory.task.content,
        "instruction": stored.trajectory.task.instruction,
        "path": stored.path,
        "source": stored.source,
        "error": stored.trajectory.error,
        "info": stored.trajectory.info,
        "reports": [report.body for report in stored.reports],
        "reward_history": history,
        "outcome_history": [asdict(entry.outcome) for entry in stored.outcome_history],
        "steps": steps,
    }


def _list_ids(of: Any, name: str) -> list[int]:
    return [int(token) for token in getattr(of, name, ())]


def format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def format_age(seconds: float) -> str:
    for unit, size in reversed(UNITS.items()):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return "now"


def format_size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table at a terminal, with whole names in its first column; tab-separated lines anywhere else."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from stepwell.monitors.plain_text import show_controls

    rows = [tuple(show_controls(cell) for cell in row) for row in rows]
    console = Console(highlight=False)
    if not console.is_terminal:
        for row in (head, *rows):
            print("\t".join(row))
        return
    table = Table(*head, box=None, pad_edge=False)
    table.columns[0].no_wrap, table.columns[0].min_width = True, max((len(row[0]) for row in rows), default=0)
    for row in rows:
        table.add_row(*map(Text, row))  # not markup
    console.print(table)


@contextmanager
def show_progress(words: str, total: int | None) -> Iterator[Any]:
    """A progress bar on standard error during long work; nothing if that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(words, total=total)
        yield lambda num_done: bar.update(task, completed=num_done)
