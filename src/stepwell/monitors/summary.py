"""`summary.json`: the results of a run, in one small file that studies and scripts read.

The seven first fields are always there. A `SuccessScore` carries its confidence interval, so that
no figure is shown without one where one is known. What this version does not know is kept
in `more` and written back.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from stepwell.core.disk import atomic_write
from stepwell.core.errors import EncodingError

FILE_NAME = "summary.json"
_SCORES = ("before", "after", "latest", "best")
T = TypeVar("T", "SuccessScore", "Summary")


@dataclass(slots=True)
class SuccessScore:
    """Success on held-out tasks, with its confidence interval if known."""

    success: float
    low: float | None = None
    high: float | None = None
    num_tasks: int | None = None
    name: str = ""
    note: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Summary:
    """The results of a run; `status` says whether it finished.

    `after` is the score of the last weights, and None if they were not evaluated. `latest` and `best` are
    scores of evaluations during the run, each named by its update. `changes` are settings that were changed
    when the run was resumed.
    """

    success_before: float | None
    success_after: float | None
    env_steps: int
    wall_s: float
    seed: int
    recipe: str
    env: str
    status: Literal["finished", "stopped_early", "interrupted", "failed"] = "finished"
    before: SuccessScore | None = None
    after: SuccessScore | None = None
    latest: SuccessScore | None = None
    best: SuccessScore | None = None
    baselines: list[SuccessScore] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    interrupted_by: str = ""
    decoding: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def describe_success(summary: Summary) -> str:
    """What is known about held-out success, in one sentence without a full stop.

    >>> describe_success(Summary(0.31, 0.92, 100, 1.0, 0, "steppo", "frozenlake"))
    'held-out success 0.31 -> 0.92'
    """
    before, after, latest = summary.success_before, summary.success_after, summary.latest
    is_changed = summary.before is not None and bool(summary.before.note)
    if before is not None and after is not None:
        text = " (before: with other eval settings)" if is_changed else ""
        best = summary.best
        if best is not None and best.success > after:
            text += f", best {best.success:.2f} at {best.name}"
        return f"held-out success {before:.2f} -> {after:.2f}{text}"
    if after is not None:
        return f"held-out success {after:.2f} (not measured before training)"
    if before is None and latest is None:
        is_over = summary.status in ("finished", "stopped_early")
        why = "eval.num_tasks is 0" if is_over else "the run ended before its first evaluation"
        return f"held-out success was not measured ({why})"
    text = "held-out success" if before is None else f"held-out success {before:.2f} before training,"
    last = f"update {summary.more.get('num_updates', 0)}"
    if latest is not None and latest.name not in ("update 0", last):
        text += f" {latest.success:.2f} at {latest.name},"
    if summary.more.get("num_updates", 0) == 0:
        return f"{text} no update was made"
    return f"{text} not measured after {last}, the last one"


def describe_changes(summary: Summary) -> list[str]:
    """The settings that were changed when the run was resumed, one sentence each."""
    return [
        f"{change['key']} from {change['old']} to {change['new']} after update {change['update']}"
        for change in summary.changes
    ]


def write_summary(folder: Path, summary: Summary) -> Path:
    """Write `summary.json` of a run folder atomically."""
    content = _flatten_fields(asdict(summary))
    for name in _SCORES:
        content[name] = _flatten_fields(content[name]) if content[name] else None
    content["baselines"] = [_flatten_fields(score) for score in content["baselines"]]
    path = folder / FILE_NAME
    atomic_write(path, json.dumps(content, indent=2) + "\n")
    return path


def read_summary(folder: Path) -> Summary | None:
    """The summary of a run folder; None when the run has not written one."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        for name in _SCORES:
            content[name] = _build_known(SuccessScore, content[name]) if content.get(name) else None
        content["baselines"] = [_build_known(SuccessScore, item) for item in content.get("baselines", [])]
        return _build_known(Summary, content)
    except (ValueError, TypeError, AttributeError) as error:
        raise EncodingError(f"{path} is damaged ({error}); delete it, or run the evaluation again") from error


def _flatten_fields(content: dict[str, Any]) -> dict[str, Any]:
    return {**content.pop("more"), **content}


def _build_known(kind: type[T], content: dict[str, Any]) -> T:
    names = {item.name for item in fields(kind)} - {"more"}
    more = {name: value for name, value in content.items() if name not in names}
    return kind(**{name: value for name, value in content.items() if name in names}, more=more)


def write_repeat_command(folder: str | Path, name: str | None) -> str:
    """The command that does a run once more; a run with a name of its own gets another one."""
    words = ["stepwell", "train", f"{folder}/config.toml"]
    return shlex.join([*words, f"name={name}-again"] if name else words)
