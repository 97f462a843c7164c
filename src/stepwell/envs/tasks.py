"""Draws tasks: distinct by content, of one split, and the same for the same seed everywhere.

The split of a task depends only on its content (`Task.split`), so no choice of seeds can put one board into
both splits. An environment may have fewer tasks than requested: after many draws without a new task, or with
few, the environment counts as exhausted. Tasks that are drawn hardly ever are not waited for.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any

from stepwell.config.base import Settings
from stepwell.core import ConfigError, InputError, Split, StepwellError, Task
from stepwell.core.user_code import format_own_lines
from stepwell.envs.base import require_type
from stepwell.envs.registry import find_env_type, read_options

PATIENCE, MISSES_PER_TASK, DRAWS_PER_TASK = 500, 20, 50


def draw_tasks(
    name: str,
    options: Mapping[str, Any] | Settings | None,
    split: Split,
    count: int,
    seed: int,
    held_out_share: float = 0.2,
) -> list[Task]:
    """Draw `count` distinct tasks of one split; too few is a `ConfigError` with the number available."""
    if count < 0:
        raise InputError(f"count must not be negative, got {count}")
    tasks = list(itertools.islice(list_distinct_tasks(name, options, split, seed, held_out_share), count))
    if len(tasks) < count:
        raise ConfigError(
            f"{name} with these env.options has {len(tasks)} {Split(split).value} tasks, {count} were asked "
            f"for; ask for fewer, change env.held_out_share ({held_out_share}), or allow more variety"
        )
    return tasks


def list_distinct_tasks(
    name: str,
    options: Mapping[str, Any] | Settings | None,
    split: Split,
    seed: int,
    held_out_share: float = 0.2,
) -> Iterator[Task]:
    """Distinct tasks of one split, until the environment seems exhausted."""
    kind, settings = find_env_type(name), read_options(name, options)
    draws = random.Random(seed)
    seen: set[str] = set()
    num_draws = misses = 0
    while misses < PATIENCE + MISSES_PER_TASK * len(seen) and num_draws < PATIENCE + DRAWS_PER_TASK * len(
        seen
    ):
        num_draws += 1
        task = _make_task(kind, settings, draws.getrandbits(32))
        if task.id in seen:
            misses += 1
            continue
        seen.add(task.id)
        misses = 0
        if task.split(held_out_share) == split:
            yield task


def _make_task(kind: Any, settings: Settings, seed: int) -> Task:
    """A task of an environment, which may be a user's own and fail."""
    try:
        made = kind.make_task(settings, seed)
    except (StepwellError, ImportError) as error:
        if isinstance(error, InputError):
            raise ConfigError(f"{kind.__name__}.make_task: {error}") from error
        raise
    except Exception as error:
        raise ConfigError(f"{kind.__name__}.make_task failed:\n{format_own_lines(error)}") from error
    task: Task = require_type(kind, "make_task", made, Task)
    return task
