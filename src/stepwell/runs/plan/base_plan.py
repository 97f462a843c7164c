"""What the plans of all runs have in common: tasks, recipe, warm start, limits and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepwell.core import Split, Status, Task, Trajectory
from stepwell.core.text import format_count
from stepwell.runs.build.components import HELD_OUT_SEED, Components
from stepwell.runs.build.phases import choose_generator, find_phase_length
from stepwell.runs.build.warm_starts import NO_DEMOS, describe_goal, has_goal
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.task_count import TaskCount
from stepwell.runs.plan.text import format_line, format_sizes
from stepwell.training import count_batches, split_trajectories

TITLE = "what would be done (nothing is trained now)"


class BasePlan:
    """The figures of a plan, and its lines."""

    def __init__(self, components: Components) -> None:
        self.components, self.config, self.recipe = components, components.config, components.recipe
        self.warnings: list[str] = []
        train = self.config.train
        self.trained = self._count_tasks(Split.TRAIN, train.num_tasks, self.config.seed)
        self.held_out = self._count_tasks(Split.HELD_OUT, self.config.eval.num_tasks, HELD_OUT_SEED)
        self.tasks = list(self.trained.tasks)
        self.num_trajectories = train.tasks_per_update * train.group_size

    def _count_tasks(self, split: Split, num_wanted: int, seed: int) -> TaskCount:
        if num_wanted == 0:
            return TaskCount((), 0, is_stopped=False)
        every = self.components.iterate_tasks(split, seed)
        counted = TaskCount.count_tasks(every, num_wanted)
        self.components.check_tasks(list(counted.tasks), split)
        return counted

    def describe_tasks(self) -> str:
        """ "64 training tasks, 16 held out"."""
        return f"{self.trained.describe()} training tasks, {self.held_out.describe()} held out"

    def lines(self) -> Iterator[str]:
        """At most thirty."""
        raise NotImplementedError

    def find_problems(self) -> None:
        """Add the warnings that hold for every kind of run."""
        train, recipe = self.config.train, self.recipe
        if recipe.needs_groups and train.group_size == 1:
            self.warnings.append(
                f"recipe {recipe.name} compares siblings, and train.group_size is 1: every advantage is 0"
            )
        if recipe.loss.name == "webrl_loss" and recipe.kl is not None:
            self.warnings.append(
                "the loss of webrl holds the policy to its reference (recipe.loss.beta), and recipe.kl_coef "
                "adds a second KL term: set recipe.kl_coef=0"
            )
        if recipe.curriculum and train.group_size > 1:
            self.warnings.append(
                f"recipe {recipe.name} plays a task once, and train.group_size is {train.group_size}: set "
                "train.group_size=1, and train.tasks_per_update to as many more"
            )
        if train.minibatches > train.tasks_per_update:
            self.warnings.append(
                f"groups stay whole: {train.minibatches} minibatches of {train.tasks_per_update} groups "
                f"become {train.tasks_per_update}"
            )
        for counted, name in ((self.trained, "train.num_tasks"), (self.held_out, "eval.num_tasks")):
            if counted.is_too_small:
                self.warnings.append(
                    f"{name} is {counted.num_wanted}, but this environment has {len(counted.tasks)}"
                )

    def describe_policy(self, size: ModelSize, num_trained: int, context_limit: int) -> Iterator[str]:
        """The model of a language agent."""
        policy = self.config.policy
        kind = "all are trained" if policy.lora is None else f"{num_trained:,} trained (adapters)"
        yield format_line(
            "policy",
            f"{policy.model}: {size.num_parameters:,} parameters, {kind}; {policy.dtype} on "
            f"{policy.device}, context {context_limit}, critic {self.components.critic_kind}",
        )

    def describe_recipe(self) -> Iterator[str]:
        """Credit, loss, value, KL, reward and optimizer."""
        recipe = self.recipe
        whitened = f", whitened over {recipe.whiten}" if recipe.whiten else ""
        yield format_line("recipe", f"{recipe.name}: credit {recipe.credit or 'none'}{whitened}")
        yield format_line("", f"loss {recipe.loss}, entropy x {recipe.entropy_coef:g}")
        value = "no critic" if recipe.value is None else f"{recipe.value.loss} at {recipe.value.sites}"
        kl = recipe.kl
        kl_text = "no KL" if kl is None else f"KL {kl.estimator} x {kl.coef:g} in the {kl.kl_in}"
        coef = f" x {recipe.value_coef:g}" if recipe.value is not None else ""
        yield format_line("", f"value {value}{coef}; {kl_text}")
        rewarded = " + ".join(recipe.reward_parts or ("task",))
        yield format_line("reward", f"{rewarded}, times {self.config.rewards.scale:g}")
        optimizer, train = self.config.train.optimizer, self.config.train
        yield format_line(
            "optimizer",
            f"{optimizer.kind} at {optimizer.learning_rate:g}, {train.schedule} after "
            f"{format_count(train.warmup_updates, 'update')} of warm-up; "
            f"gradients clipped at {optimizer.grad_clip:g}",
        )

    def describe_minibatches(self, most: str = "") -> str:
        """How an update is split, and its optimizer steps."""
        train = self.config.train
        sizes = split_minibatches(train.tasks_per_update, train.group_size, train.minibatches)
        steps = format_count(len(sizes) * train.update_epochs, "optimizer step")
        return (
            f"{format_count(len(sizes), 'minibatch')} of {format_sizes(sizes)}{most}; "
            f"{format_count(train.update_epochs, 'pass')} = {steps}"
        )

    def run_lines(self) -> Iterator[str]:
        """Warm start, limits and evaluations."""
        config, train, warm = self.config, self.config.train, self.config.warm_start
        if warm.chats is not None:
            from stepwell.runs.sft.chats import count_chats  # a plan imports only what it needs

            count = count_chats(warm.chats, "warm_start.chats")
            name = Path(warm.chats).name
            yield format_line("warm start", f"{format_count(count, 'chat')} of {name} {self._warm_up(count)}")
        if config.num_demos:
            count = self.count_demonstrations()
            yield format_line(
                "warm start", f"{count} demonstrations with {warm.noise:g} noise {self._warm_up(count)}"
            )
        elif warm.num_demos:
            yield format_line("warm start", NO_DEMOS)
        if config.has_warm_start and has_goal(warm):
            yield format_line("", f"until {describe_goal(warm)}, checked every {warm.check_every} updates")
        limits = [f"{train.num_updates} updates = {train.num_updates * self.num_trajectories:,} episodes"]
        limits += [f"{train.max_env_steps:,} actions"] if train.max_env_steps is not None else []
        limits += [f"{train.max_seconds:g} s"] if train.max_seconds is not None else []
        often = f"every {config.eval.every} updates, " if config.eval.every else ""
        episodes = self.held_out.num_used * config.eval.samples_per_task
        yield format_line(
            "the run", f"{' or '.join(limits)}, whichever comes first" if limits[1:] else limits[0]
        )
        yield format_line("", f"evaluated {often}before and after, {episodes} episodes each")
        yield from self._list_phases()

    def _list_phases(self) -> Iterator[str]:
        """The phases of the curriculum, if there are some."""
        config, train = self.config, self.config.train
        length = find_phase_length(config, self.recipe)
        if length is None:
            return
        count = -(-train.num_updates // length)
        num_tasks = config.curriculum.tasks_per_phase or train.tasks_per_update * length
        yield format_line(
            "phases",
            f"{count} of {format_count(length, 'update')}, {num_tasks} tasks each; new tasks: "
            f"{choose_generator(config, self.recipe)}",
        )

    def _warm_up(self, count: int) -> str:
        warm = self.config.warm_start
        most = "at most " if has_goal(warm) else ""
        updates = format_count(self.count_warm_updates(count), "update")
        return f"in batches of {warm.batch_size}, {most}{updates}"

    def count_demonstrations(self) -> int:
        """Demonstrations of the warm start; tasks are repeated where they are few."""
        return self.config.warm_start.num_demos * self.config.warm_start.demos_per_task

    def count_warm_updates(self, count: int) -> int:
        """Updates of a warm start from this many demonstrations."""
        return count_batches(self.config.warm_start, count)


def split_minibatches(num_groups: int, group_size: int, count: int) -> list[int]:
    """How many trajectories each minibatch of an update has.

    >>> split_minibatches(130, 1, 3), split_minibatches(5, 3, 2)
    ([44, 43, 43], [9, 6])
    """
    task = Task("plan", {})
    groups = (f"{i}" for i in range(num_groups) for _ in range(group_size))
    trajectories = [Trajectory(task, [], Status.FAILURE, group) for group in groups]
    return [len(part) for part in split_trajectories(trajectories, count)]


def round_sizes(count: int, size: int) -> list[int]:
    """How many of `count` episodes are played in each round of at most `size`."""
    return [min(size, count - start) for start in range(0, count, size)]
