"""What every run needs, with any agent: recipe, environments, tasks and pools, each built on first use.

`folder` is the run's folder. Without one (an evaluation, a plan) the pool is temporary.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import ConfigError, Split, Task
from stepwell.core.text import describe_error
from stepwell.envs.batch import EnvBatch
from stepwell.envs.registry import count_places
from stepwell.envs.tasks import list_distinct_tasks
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.runs.build.task_files import read_tasks
from stepwell.workers.placement import check_device

if TYPE_CHECKING:
    from stepwell.pool import Pool


@dataclass(eq=False)
class RunResources:
    """Settings, and what follows from them for a language agent and a robot alike.

    `for_plan` says that nothing will be sampled or trained: the tokenizer is then read without
    transformers where possible. `find_model` gives the directory of a language model in place of
    `resolve_model`.
    """

    config: RunConfig
    folder: Path | None = None
    run_name: str = ""  # the tag of the run's episodes in the pool; empty: the folder's name
    for_plan: bool = False
    find_model: Callable[..., Path] | None = None

    def __post_init__(self) -> None:
        if not self.run_name and self.folder is not None:
            self.run_name = self.folder.name
        check_device("policy.device", self.config.policy.device)
        if self.config.outcome.is_judged:
            check_device("outcome.device", self.config.outcome.device)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that settings name. The user's own reward parts count in every recipe."""
        recipe = resolve_recipe(self.config.recipe)
        if len(self.config.workers.trainers.devices) > 1 or self.config.train.sharding == "full":
            from stepwell.training.ranked_policy import refuse_full_kl

            refuse_full_kl(recipe)
        own = tuple(part.name for part in self.config.rewards.parts)
        return replace(recipe, reward_parts=(*(recipe.reward_parts or ("task",)), *own)) if own else recipe

    @property
    def critic_kind(self) -> Literal["none", "shared", "own"]:
        """The critic that settings ask for, or the one that the recipe needs."""
        wanted = self.config.policy.critic
        return "shared" if self.recipe.needs_critic and wanted == "none" else wanted

    @property
    def demonstrated_parts(self) -> tuple[str, ...]:
        """The reward parts whose sum is the reward of a demonstration."""
        asked = self.config.warm_start.reward_parts
        return self.recipe.reward_parts if asked is None else asked

    @property
    def has_env(self) -> bool:
        """Whether tasks come from an environment; a user's own agent may bring its own tasks."""
        return self.config.own_agent.tasks is None

    @cached_property
    def envs(self) -> EnvBatch:
        """One environment for each episode that is played at once, as many as a process can have."""
        train, held_out = self.config.train, self.config.eval
        most = max(train.tasks_per_update * train.group_size, held_out.num_tasks * held_out.samples_per_task)
        env, size = self.config.env, min(most, self.config.engine.slots)
        places = count_places(env.name, env.options)
        return EnvBatch(env.name, env.options, size if places is None else min(size, places))

    @cached_property
    def pool(self) -> Pool:
        """The store of trajectories: the pool that settings name, or the run's own."""
        from stepwell.pool import open_pool

        config = self.config.pool
        if config.url is not None:
            return open_pool(config.url, durable=config.durable, blobs=config.blobs, require_write=True)
        if self.folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="stepwell-")
        return open_pool(
            (self.folder or Path(self._temporary.name)) / "pool" / "pool.db", durable=config.durable
        )

    @cached_property
    def stored_pool(self) -> Pool:
        """The pool that an offline run learns from, with the images of its steps."""
        from stepwell.pool import open_pool

        assert self.config.offline.pool is not None
        return open_pool(self.config.offline.pool)

    def tasks(self, split: Split, count: int, seed: int) -> list[Task]:
        """Distinct tasks of one split; all of them if the environment has fewer."""
        return self.check_tasks(list(itertools.islice(self.iterate_tasks(split, seed), count)), split)

    def iterate_tasks(self, split: Split, seed: int) -> Iterator[Task]:
        """All distinct tasks of one split, drawn one by one or read from a file."""
        env, own = self.config.env, self.config.own_agent.tasks
        source, setting = (own, "own_agent.tasks") if own is not None else (env.tasks, "env.tasks")
        if source is None:
            return list_distinct_tasks(env.name, env.options, split, seed, env.held_out_share)
        name = self.envs.envs[0].name if own is None else None
        return iter(read_tasks(source, split, seed, env.held_out_share, env=name, setting=setting))

    def check_tasks(self, tasks: list[Task], split: Split) -> list[Task]:
        """Refuse a split without tasks."""
        env, own = self.config.env, self.config.own_agent.tasks
        source, setting = (own, "own_agent.tasks") if own is not None else (env.tasks, "env.tasks")
        if not tasks and source is not None:
            raise ConfigError(
                f"{setting}: {source} has no {split.value} task; add some, or `split` fields "
                "(a task that is in both splits counts as held out)"
            )
        if not tasks:
            raise ConfigError(
                f"{env.name} with these env.options has no {split.value} task: change "
                f"env.held_out_share ({env.held_out_share}) or allow more variety"
            )
        if source is not None and own is None:
            self._check_content(source, tasks[0])
        self._check_judged(tasks, split)
        return tasks

    def _check_content(self, source: str, task: Task) -> None:
        """Refuse tasks of a file that the environment cannot begin."""
        try:
            self.envs.ask(0, lambda env: env.reset(options={"task": task}))
        except (Exception, SystemExit) as error:  # an environment may raise anything
            known = ", ".join(sorted(task.content)) or "nothing"
            raise ConfigError(
                f"env.tasks: {self.config.env.name} cannot begin a task of {source}, which holds {known} "
                f"({describe_error(error)}); a task holds what the environment's make_task gives"
            ) from error

    def _check_judged(self, tasks: list[Task], split: Split) -> None:
        """Refuse tasks that nobody would judge."""
        first = next((task for task in tasks if not task.has_checker), None)
        if first is None:
            return
        which = f"{split.value} tasks of {self.config.env.name}"
        found = f"{which} have no checker, such as {first.instruction!r:.80}"
        if split is Split.HELD_OUT:
            raise ConfigError(
                f"{found}. Held-out tasks are always judged by checkers: evaluate on tasks that have one, or "
                "set eval.num_tasks=0"
            )
        if self.config.offline.pool is None and not self.config.outcome.is_judged:
            raise ConfigError(
                f"{found}. So nobody could tell whether they are done: set outcome.judge to model:DIR (of "
                "`stepwell orm train`) or endpoint:NAME (docs/judging.md)"
            )


def close_built(owner: object, *names: str) -> None:
    """Close those cached properties of an object that were built and can be closed."""
    for name in names:
        close = getattr(vars(owner).get(name), "close", None)
        if close is not None:
            close()
