"""What happened in a phase, as plain data: results, tasks with their family tree, what was dropped, replay.

    phases/phase-0002.json     one object per phase, read by the console and the report

Required turns of a task are the oracle's, else a shortest plan's (`golden`), else the fewest turns of a
success in this phase; a task with none of them counts as `unknown`. Requirements are counted where the
environment does (`Env.count_requirements`).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from stepwell.core import Task, Trajectory
from stepwell.core.disk import atomic_write, make_folder_durably
from stepwell.curriculum.error_types import classify_failure
from stepwell.curriculum.perplexity import HISTOGRAM_EDGES, ScoredTrajectory, count_perplexities
from stepwell.curriculum.phase_files import DroppedTask, SourcedTask

FOLDER = "phases"
TITLE_CHARS = 80
MAX_DROPPED = 100  # dropped tasks that a summary names; all of them are counted


def summarize_phase(
    phase: int,
    updates: range,
    tasks: Sequence[SourcedTask],
    dropped: Sequence[DroppedTask],
    played: Iterable[Trajectory],
    scored: Sequence[ScoredTrajectory],
    *,
    name_family: Callable[[Task], str],
    count_requirements: Callable[[Task], int | None] = lambda task: None,
    max_turns: int | None = None,
) -> dict[str, Any]:
    """The summary of a phase from what is stored about it."""
    episodes = [each for each in played if each.steps]
    required = _find_required_turns(tasks, episodes)
    namers: dict[str, Callable[[Task], Any]] = {
        "families": name_family,
        "required_turns": lambda task: _name_turns(required.get(task.id)),
        "requirements": count_requirements,
    }
    errors = Counter(classify_failure(each, max_turns).value for each in episodes if not each.is_success)
    return {
        "phase": phase,
        "updates": [updates.start, updates.stop - 1],
        "num_episodes": len(episodes),
        "success": _average([each.is_success for each in episodes]),
        **{name: _group_episodes(episodes, namer) for name, namer in namers.items()},
        "errors": dict(errors.most_common()),
        "made": sum(bool(each.parents) for each in tasks) + len(dropped),
        "kept": dict(Counter(each.relation or each.generator for each in tasks).most_common()),
        "dropped": dict(Counter(each.reason for each in dropped).most_common()),
        "dropped_tasks": [
            _describe_made(each.made) | {"reason": each.reason} for each in dropped[:MAX_DROPPED]
        ],
        "buffer": len(scored),
        "perplexities": {
            "edges": list(HISTOGRAM_EDGES),
            "counts": count_perplexities([value for each in scored for value in each.perplexities]),
        },
        "tasks": [_describe_task(each, episodes, required) for each in tasks],
    }


def write_phase_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Store a summary; again, if the phase has gone on."""
    make_folder_durably(folder / FOLDER)
    path = folder / FOLDER / f"phase-{summary['phase']:04d}.json"
    atomic_write(path, json.dumps(summary, allow_nan=False))


def describe_summary(summary: dict[str, Any]) -> str:
    """A summary in one line, for the console."""
    first, last = summary["updates"]
    parts = [
        f"phase {summary['phase']} (updates {first} to {last}): {summary['success']:.2f} of "
        f"{summary['num_episodes']} episodes solved"
    ]
    if len(summary["families"]) > 1:
        parts.append(", ".join(f"{name} {row['success']:.2f}" for name, row in summary["families"].items()))
    kept = ", ".join(f"{count} {name}" for name, count in summary["kept"].items())
    dropped = ", ".join(f"{count} {name}" for name, count in summary["dropped"].items())
    parts.append(f"tasks: {kept}" + (f"; dropped: {dropped}" if dropped else ""))
    if summary["buffer"]:
        parts.append(f"{summary['buffer']} trajectories to replay")
    if summary["errors"]:
        parts.append("failures: " + ", ".join(f"{count} {name}" for name, count in summary["errors"].items()))
    return "; ".join(parts)


def _find_required_turns(tasks: Sequence[SourcedTask], episodes: Sequence[Trajectory]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in episodes:
        if each.is_success:
            found[each.task.id] = min(found.get(each.task.id, each.num_turns), each.num_turns)
    for each in episodes:
        if isinstance(golden := each.info.get("golden"), int):
            found[each.task.id] = golden
    return found | {each.task.id: each.num_turns for each in tasks if each.num_turns is not None}


def _name_turns(turns: int | None) -> str:
    if turns is None:
        return "unknown"
    for low, high in ((1, 2), (3, 4), (5, 6), (7, 10)):
        if turns <= high:
            return f"{low} to {high}"
    return "more than 10"


def _group_episodes(
    episodes: Sequence[Trajectory], name_group: Callable[[Task], Any]
) -> dict[str, dict[str, float]]:
    groups: dict[str, list[bool]] = defaultdict(list)
    for each in episodes:
        if (name := name_group(each.task)) is not None:
            groups[str(name)].append(each.is_success)
    return {
        name: {"episodes": len(solved), "success": _average(solved)}
        for name, solved in sorted(groups.items())
    }


def _describe_task(
    sourced: SourcedTask, episodes: Sequence[Trajectory], required: dict[str, int]
) -> dict[str, Any]:
    own = [each.is_success for each in episodes if each.task.id == sourced.task.id]
    return {
        **_describe_made(sourced),
        "id": sourced.task.id,
        "turns": required.get(sourced.task.id),
        "played": len(own),
        "solved": sum(own),
    }


def _describe_made(made: SourcedTask) -> dict[str, Any]:
    return {
        "title": _make_title(made.task),
        "relation": made.relation or made.generator,
        "value": made.value,
        "parents": list(made.parents),
    }


def _make_title(task: Task) -> str:
    """The instruction, or the content where there is none, in one short line of printable characters."""
    text = task.instruction or json.dumps(task.content, sort_keys=True)
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1]}…"


def _average(solved: Sequence[bool]) -> float:
    return sum(solved) / len(solved) if solved else 0.0
