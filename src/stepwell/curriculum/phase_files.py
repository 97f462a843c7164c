"""The tasks of each phase on disk: one JSONL file per phase, one task with its lineage per line.

    phase-0002.jsonl:    {"task": {"env": ..., "content": ...}, "parents": ["…"], "generator": "evolve",
                          "relation": "easier", "value": 0.31, "num_turns": 4}
    dropped-0002.jsonl:  the same with "reason": tasks that were made and not used

Invariants
* A file appears under its name only when it is complete, and never changes afterwards. What was dropped is
  stored first: every stored phase has its dropped tasks.
* `parents` are the ids of the tasks that this one was made from; none for a task of the environment itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.core import ConfigError, Task
from stepwell.core.disk import atomic_write, make_folder_durably
from stepwell.core.ids import hash_bytes

_PLAIN = ("generator", "relation", "value", "num_turns")


@dataclass(frozen=True, slots=True)
class SourcedTask:
    """A task and where it comes from: the ids of its parents, and the name of what made it.

    `relation` says how it compares with its parents. `value` is the critic's value of its first state, and
    `num_turns` how many turns the oracle took, where these were asked.
    """

    task: Task
    parents: tuple[str, ...] = ()
    generator: str = ""
    relation: str = ""
    value: float | None = None
    num_turns: int | None = None


@dataclass(frozen=True, slots=True)
class DroppedTask:
    """A task that was made and not used, and why."""

    made: SourcedTask
    reason: str


class PhaseFiles:
    """The stored phases of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has_phase(self, phase: int) -> bool:
        return self._find_path("phase", phase).exists()

    def read_phase(self, phase: int) -> list[SourcedTask]:
        """The tasks of a phase, in their order."""
        return [_decode_line(line) for line in self._read_lines("phase", phase)]

    def read_dropped(self, phase: int) -> list[DroppedTask]:
        """What was made for a phase and not used; empty where that was not stored."""
        if not self._find_path("dropped", phase).exists():
            return []
        return [
            DroppedTask(_decode_line(line), str(line["reason"]))
            for line in self._read_lines("dropped", phase)
        ]

    def write_phase(
        self, phase: int, tasks: Sequence[SourcedTask], dropped: Sequence[DroppedTask] = ()
    ) -> None:
        """Store the tasks of a phase; all of them are on disk when this returns."""
        if dropped:
            lines = [{**_encode_line(each.made), "reason": each.reason} for each in dropped]
            self._write_lines("dropped", phase, lines)
        self._write_lines("phase", phase, [_encode_line(each) for each in tasks])

    def compute_digest(self, phase: int) -> str | None:
        """A hash of a phase's file; None without one."""
        path = self._find_path("phase", phase)
        return hash_bytes(path.read_bytes()) if path.exists() else None

    def _find_path(self, kind: str, phase: int) -> Path:
        return self.folder / f"{kind}-{phase:04d}.jsonl"

    def _read_lines(self, kind: str, phase: int) -> list[dict[str, Any]]:
        path = self._find_path(kind, phase)
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="ascii").split("\n")[:-1]]
            for line in lines:
                _decode_line(line)
            return lines
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the tasks of phase {phase} in {path} cannot be read: {error!r}") from error

    def _write_lines(self, kind: str, phase: int, lines: Sequence[dict[str, Any]]) -> None:
        make_folder_durably(self.folder)
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        atomic_write(self._find_path(kind, phase), text)


def _encode_line(fed: SourcedTask) -> dict[str, Any]:
    task = fed.task
    plain = {
        "env": task.env,
        "content": task.content,
        "instruction": task.instruction,
        "seed": task.seed,
        "tags": list(task.tags),
    }
    return {"task": plain, "parents": list(fed.parents)} | {name: getattr(fed, name) for name in _PLAIN}


def _decode_line(value: dict[str, Any]) -> SourcedTask:
    plain = value["task"]
    task = Task(plain["env"], plain["content"], plain["instruction"], plain["seed"], tuple(plain["tags"]))
    return SourcedTask(task, tuple(value["parents"]), **{name: value[name] for name in _PLAIN})
