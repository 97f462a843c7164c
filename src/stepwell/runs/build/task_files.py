"""Tasks from a file or a data set (`data/rows.py` says which): one row, one task.

    {"instruction": "What is 2 + 3?", "answer": "5"}
    {"question": "Who wrote it?", "split": "held_out"}

`instruction` is the task's instruction, `split` (`train` or `held_out`) its split, everything else its
content. Where some rows are marked `held_out`, those without `split` are for training; where none is, a hash
of the content decides, as in any environment (`env.held_out_share`). Equal tasks count once, and are held out
if one of them is. Tasks of a user's own agent (`own_agent.tasks`) are named after their file, tasks of an
environment (`env.tasks`) after the environment.
"""

from __future__ import annotations

import random
from typing import Any

from stepwell.core import ConfigError, InputError, Split, Task
from stepwell.data.rows import name_source, read_rows


def read_tasks(
    source: str,
    split: Split,
    seed: int,
    held_out_share: float,
    *,
    env: str | None = None,
    setting: str = "own_agent.tasks",
) -> list[Task]:
    """The tasks of one split, in an order that follows from the seed."""
    read = [
        _read_task(env or name_source(source), row, f"{setting}: {source}, {place}")
        for place, row in read_rows(source, setting)
    ]
    unmarked = Split.TRAIN if any(named is Split.HELD_OUT for _, named in read) else None
    held_out = {
        task.id for task, named in read if (named or unmarked or task.split(held_out_share)) is Split.HELD_OUT
    }
    tasks = {task.id: task for task, _ in read if (task.id in held_out) == (split is Split.HELD_OUT)}
    ordered = list(tasks.values())
    random.Random(seed).shuffle(ordered)
    return ordered


def _read_task(env: str, content: dict[str, Any], where: str) -> tuple[Task, Split | None]:
    split, instruction = content.pop("split", None), content.pop("instruction", "")
    if split is not None and split not in list(Split):
        raise ConfigError(f"{where}: split is {split!r}; it must be train or held_out")
    if not isinstance(instruction, str):
        raise ConfigError(f"{where}: instruction is {instruction!r}; it must be text")
    try:
        return Task(env, content, instruction), None if split is None else Split(split)
    except InputError as error:
        raise ConfigError(f"{where}: {error}") from error
