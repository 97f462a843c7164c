"""The task feed of a run, from its settings; what became of a phase's tasks is read from the pool.

A group's name says which update it was played for, so the trajectories of a phase are known exactly, also
those that a killed process left behind. They are tagged `keep` until the next phase is made, so that the pool
does not remove failures that tasks will be made from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Task
from stepwell.core.user_objects import find_object
from stepwell.curriculum import (
    FixedFeed,
    InstructionEvolver,
    PhasedFeed,
    PhaseFiles,
    PhaseResults,
    TaskEvolver,
    TaskFeed,
    TaskGenerator,
)
from stepwell.curriculum.phases import take_fresh_tasks
from stepwell.envs.base import Env
from stepwell.envs.registry import find_env_type, read_options
from stepwell.pool import Channel, Filter, TrajectorySummary
from stepwell.pool.results import KEEP_TAG, UNJUDGED_TAG
from stepwell.runs.build.components import Components
from stepwell.runs.build.phases import choose_generator, find_phase_length
from stepwell.runs.loop.task_endpoint import TaskEndpoint
from stepwell.runs.loop.task_screen import OracleScreen

FOLDER = "tasks"


def build_feed(
    components: Components, tasks: Sequence[Task], folder: Path, run: str, note: Callable[[str], None]
) -> TaskFeed:
    """The feed that the settings ask for."""
    config = components.config
    train, curriculum = config.train, config.curriculum
    updates = find_phase_length(config, components.recipe)
    if updates is None:
        return FixedFeed(tasks, train.tasks_per_update, config.seed)

    def read_results(phase: int, played: Sequence[Task]) -> PhaseResults:
        first = (phase - 1) * updates + 1
        return read_phase_results(components, run, range(first, first + updates), played)

    name = choose_generator(config, components.recipe)
    is_screened = name in ("evolve", "endpoint")
    return PhasedFeed(
        tasks,
        PhaseFiles(folder / FOLDER),
        find_generator(name, components),
        generator=name,
        tasks_per_update=train.tasks_per_update,
        updates_per_phase=updates,
        seed=config.seed,
        held_out_share=config.env.held_out_share,
        read_results=read_results,
        note=note,
        screen=OracleScreen(components, needs_oracle=name == "evolve") if is_screened else None,
        max_tries=curriculum.max_tries,
        tasks_per_phase=curriculum.tasks_per_phase,
    )


def read_phase_results(
    components: Components, run: str, updates: range, played: Sequence[Task]
) -> PhaseResults:
    """What became of tasks in these updates, as far as their episodes have ended and are judged."""
    solved: dict[str, bool] = {}
    unchecked = {task.id for task in played if not task.has_checker}
    for entry in find_played(components, run, updates):
        is_unjudged = entry.task_id in unchecked or UNJUDGED_TAG in entry.tags
        if entry.outcome is None and is_unjudged:
            continue
        solved[entry.task_id] = solved.get(entry.task_id, False) or entry.is_success
    return PhaseResults(
        tuple(task for task in played if solved.get(task.id) is True),
        tuple(task for task in played if solved.get(task.id) is False),
    )


def find_played(components: Components, run: str, updates: range) -> list[TrajectorySummary]:
    """The finished episodes of these updates that count, the oldest first."""
    config = components.config
    group_size = find_group_size(config, components.recipe)
    stored = components.pool.find(Filter(channel=Channel.TRAIN, tags=(run,), is_open=False))
    return [
        entry
        for entry in stored
        if entry.is_served and find_update(entry.group or entry.id, config, group_size) in updates
    ]


def protect_phase(components: Components, run: str, update: int) -> None:
    """Tag the episodes of the phase of this update, so that the pool keeps them until the next one is made.

    Episodes of earlier phases lose the tag; those that are replayed get it again (`ReplayBuffer`).
    """
    length = find_phase_length(components.config, components.recipe)
    if length is None or update == 0 or components.config.pool.url is not None:
        return
    first = (update - 1) // length * length + 1
    now, before = range(first, first + length), range(1, first)
    new = [each.id for each in find_played(components, run, now) if KEEP_TAG not in each.tags]
    old = [each.id for each in find_played(components, run, before) if KEEP_TAG in each.tags]
    for ids, change in ((new, components.pool.tag), (old, components.pool.untag)):
        if ids:
            change(ids, KEEP_TAG)


def find_group_size(config: RunConfig, recipe: Recipe) -> int:
    """The size of the groups of an asynchronous run: 1 if the recipe does not compare siblings."""
    return config.train.group_size if recipe.needs_groups else 1


def find_generator(name: str, components: Components) -> TaskGenerator:
    """A generator by its name in settings."""
    if name == "fresh":
        return take_fresh_tasks
    if name in ("evolve", "endpoint"):
        return _build_evolver(name, components)
    found = find_object(name, f"curriculum.generator: {name}")
    if not callable(found):
        raise ConfigError(
            f"curriculum.generator: {name} is not a function; write def make_tasks(request): ..."
        )
    return found  # type: ignore[no-any-return]


def _build_evolver(name: str, components: Components) -> TaskGenerator:
    config = components.config
    kind, options = find_env_type(config.env.name), read_options(config.env.name, config.env.options)
    assert issubclass(kind, Env)
    if name == "evolve":
        return TaskEvolver(partial(kind.make_variant, options))
    endpoint, guide = config.curriculum.endpoint, components.envs.envs[0].description.guide
    return InstructionEvolver(
        TaskEndpoint(endpoint),
        partial(kind.read_instruction, options),
        guide,
        endpoint.prompt,
        allows_unchecked=config.outcome.is_judged,
        name_family=kind.name_family,
    )


def find_update(group: str, config: RunConfig, group_size: int) -> int:
    """The update whose tasks a group belongs to: `run/12-0` is of update 12, `run/g7` is group number 7."""
    label = group.rpartition("/")[2]
    if label.startswith("g"):
        return find_place(int(label[1:]), config, group_size) // config.train.tasks_per_update + 1
    return int(label.partition("-")[0])


def find_place(number: int, config: RunConfig, group_size: int) -> int:
    """Which task, counted from the start of the run, group `number` plays: siblings share one."""
    return number * group_size // config.train.group_size
