"""The task feed of a run, from its settings; what became of a phase's tasks is read from the pool.

A group's name says which update it was played for, so the trajectories of a phase are known exactly, also
those that a killed process left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Task
from stepwell.core.user_objects import find_object
from stepwell.curriculum import FixedFeed, PhasedFeed, PhaseFiles, PhaseResults, TaskFeed, TaskGenerator
from stepwell.curriculum.phases import take_fresh_tasks
from stepwell.pool import Channel, Filter
from stepwell.runs.build.components import Components

FOLDER = "tasks"


def build_feed(
    components: Components, tasks: Sequence[Task], folder: Path, run: str, note: Callable[[str], None]
) -> TaskFeed:
    """The feed that the settings ask for."""
    config = components.config
    train, curriculum = config.train, config.curriculum
    updates = curriculum.updates_per_phase
    if updates is None:
        return FixedFeed(tasks, train.tasks_per_update, config.seed)

    def read_results(phase: int, played: Sequence[Task]) -> PhaseResults:
        first = (phase - 1) * updates + 1
        counted = range(first, first + updates)
        group_size = find_group_size(config, components.recipe)
        solved: dict[str, bool] = {}
        for entry in components.pool.find(Filter(channel=Channel.TRAIN, tags=(run,), is_open=False)):
            if entry.is_served and find_update(entry.group or entry.id, config, group_size) in counted:
                solved[entry.task_id] = solved.get(entry.task_id, False) or entry.is_success
        return PhaseResults(
            tuple(task for task in played if solved.get(task.id) is True),
            tuple(task for task in played if solved.get(task.id) is False),
        )

    return PhasedFeed(
        tasks,
        PhaseFiles(folder / FOLDER),
        find_generator(curriculum.generator),
        generator=curriculum.generator,
        tasks_per_update=train.tasks_per_update,
        updates_per_phase=updates,
        seed=config.seed,
        held_out_share=config.env.held_out_share,
        read_results=read_results,
        note=note,
    )


def find_group_size(config: RunConfig, recipe: Recipe) -> int:
    """The size of the groups of an asynchronous run: 1 if the recipe does not compare siblings."""
    return config.train.group_size if recipe.needs_groups else 1


def find_generator(name: str) -> TaskGenerator:
    """A generator by its name in settings."""
    if name == "fresh":
        return take_fresh_tasks
    found = find_object(name, f"curriculum.generator: {name}")
    if not callable(found):
        raise ConfigError(f"curriculum.generator: {name} is no function; write def make_tasks(request): ...")
    return found  # type: ignore[no-any-return]


def find_update(group: str, config: RunConfig, group_size: int) -> int:
    """The update whose tasks a group belongs to: `run/12-0` is of update 12, `run/g7` is group number 7."""
    label = group.rpartition("/")[2]
    if label.startswith("g"):
        return find_place(int(label[1:]), config, group_size) // config.train.tasks_per_update + 1
    return int(label.partition("-")[0])


def find_place(number: int, config: RunConfig, group_size: int) -> int:
    """Which task, counted from the start of the run, group `number` plays: siblings share one."""
    return number * group_size // config.train.group_size
