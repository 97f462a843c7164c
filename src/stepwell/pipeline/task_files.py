"""Tasks from a file: one JSON object per line, for agents that bring their own world.

    {"instruction": "What is 2 + 3?", "answer": "5"}
    {"question": "Who wrote it?", "split": "held_out"}

`instruction` is the task's instruction, `split` (`train` or `held_out`) where it belongs, everything
else its content. Without `split` the content decides, as in any world (`env.held_out_share`). Equal
tasks count once.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from stepwell.core import ConfigError, Split, Task


def read_tasks(path: Path, split: Split, seed: int, held_out_share: float) -> list[Task]:
    """The tasks of one split, in an order that follows from the seed."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"own_agent.tasks: cannot read {path} ({error.strerror})") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            task, named = _read(path, number, line)
            if (named or task.split(held_out_share)) == split:
                tasks.setdefault(task.id, task)
    ordered = list(tasks.values())
    random.Random(seed).shuffle(ordered)
    return ordered


def _read(path: Path, number: int, line: str) -> tuple[Task, Split | None]:
    where = f"own_agent.tasks: {path}, line {number}"
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{where} is not an object; write one task's fields, such as {{'question': '...'}}")
    split, instruction = content.pop("split", None), content.pop("instruction", "")
    if split is not None and split not in list(Split):
        raise ConfigError(f"{where}: split is {split!r}; it must be train or held_out")
    if not isinstance(instruction, str):
        raise ConfigError(f"{where}: instruction is {instruction!r}; it must be text")
    return Task(path.stem, content, instruction), None if split is None else Split(split)
