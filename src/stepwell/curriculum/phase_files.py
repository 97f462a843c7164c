"""The tasks of each phase on disk: one JSONL file per phase, one task with its lineage per line.

    phase-0002.jsonl:  {"task": {"env": ..., "content": ...}, "parent": "…", "generator": "my_tasks:harder"}

Invariants
* A file appears under its name only when it is complete, and never changes afterwards.
* `parent` is the id of the task that this one was made from; none for a task of the environment itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.core import ConfigError, Task
from stepwell.core.disk import flush_file, make_folder_durably, rename_durably
from stepwell.core.ids import hash_bytes


@dataclass(frozen=True, slots=True)
class FedTask:
    """A task and where it comes from: its parent's id, and the name of what made it."""

    task: Task
    parent: str | None = None
    generator: str = ""


class PhaseFiles:
    """The stored phases of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has_phase(self, phase: int) -> bool:
        return self._find_path(phase).exists()

    def read_phase(self, phase: int) -> list[FedTask]:
        """The tasks of a phase, in their order."""
        path = self._find_path(phase)
        try:
            lines = path.read_text(encoding="ascii").split("\n")[:-1]
            return [_decode_line(json.loads(line)) for line in lines]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"the tasks of phase {phase} in {path} cannot be read: {error!r}") from error

    def write_phase(self, phase: int, tasks: Sequence[FedTask]) -> None:
        """Store the tasks of a phase; all of them are on disk when this returns."""
        make_folder_durably(self.folder)
        path = self._find_path(phase)
        part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        part.write_text("".join(_encode_line(each) + "\n" for each in tasks), encoding="ascii")
        flush_file(part)
        rename_durably(part, path)

    def compute_digest(self, phase: int) -> str | None:
        """A hash of a phase's file; None without one."""
        path = self._find_path(phase)
        return hash_bytes(path.read_bytes()) if path.exists() else None

    def _find_path(self, phase: int) -> Path:
        return self.folder / f"phase-{phase:04d}.jsonl"


def _encode_line(fed: FedTask) -> str:
    task = fed.task
    plain = {
        "env": task.env,
        "content": task.content,
        "instruction": task.instruction,
        "seed": task.seed,
        "tags": list(task.tags),
    }
    return json.dumps({"task": plain, "parent": fed.parent, "generator": fed.generator}, allow_nan=False)


def _decode_line(value: dict[str, Any]) -> FedTask:
    plain = value["task"]
    task = Task(plain["env"], plain["content"], plain["instruction"], plain["seed"], tuple(plain["tags"]))
    return FedTask(task, value["parent"], value["generator"])
