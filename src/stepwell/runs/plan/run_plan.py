"""The plan of a run: what it will do, how the work is split, and what it needs, without doing it.

Prompts are rendered and tasks drawn as the run would; the model is not loaded, its size is read
from the headers of its files. Typical figures come from a few demonstrated episodes, bounds from
the limits of turns and actions. Memory is an estimate, good to about a factor of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from stepwell.algos.recipes import Recipe
from stepwell.config.run import RunConfig
from stepwell.core import Split, Status, Task, Trajectory
from stepwell.data.rows import read_rows
from stepwell.packing import pack
from stepwell.policies.numerics import check_dtype
from stepwell.runs.build.components import Parts, held_out_tasks
from stepwell.runs.build.warm_starts import describe_goal, has_goal
from stepwell.runs.plan.model_size import ModelSize
from stepwell.runs.plan.reward_balance import describe_imbalance
from stepwell.training import num_batches, split

NUM_SHOWN = 8
MOST_COUNTED = 1024
"""Training tasks that a plan draws: enough to see that a world has many, without waiting for all."""
_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8}
# Floats kept per token and layer for the backward pass: so many times the width, and the MLP's width.
_PER_WIDTH, _PER_MLP = 20, 2


@dataclass(frozen=True, slots=True)
class Talk:
    """How many tokens an episode has. `own` are those it does not share with other tasks."""

    system: int
    first: int
    reply: float
    between: float
    turns: float
    own: float
    widest: int = 0  # the most that any turn was seen to add besides its reply
    largest: int = 0  # the longest prompt seen, where every prompt is made afresh; 0: dialogues grow

    def longest(self, max_turns: int, max_tokens: int) -> int:
        """Tokens of the longest possible sequence."""
        if self.largest:
            return self.largest + max_tokens
        return math.ceil(
            self.first + max_turns * max_tokens + (max_turns - 1) * max(self.between, self.widest)
        )


def plan(config: RunConfig) -> str:
    """What `stepwell train` would do with these settings."""
    if not config.groups.trainers.devices:  # which the policy is placed on otherwise
        check_dtype(config.policy.dtype, config.policy.device)
    parts = Parts(config, for_plan=True)
    try:
        kind = _Plan
        if config.own_agent.function is not None:
            from stepwell.runs.plan.agent_plan import AgentPlan as kind  # a _Plan, too
        elif parts.is_robot:
            from stepwell.runs.plan.robot_plan import RobotPlan as kind  # a _Plan, too
        lines = list(kind(config, parts).lines())
        if config.groups.mode != "off":
            from stepwell.runs.build.worker_groups import told

            lines += [_line("" if i else "groups", text) for i, text in enumerate(told(config, parts.recipe))]
    finally:
        parts.close()
    return "\n".join(lines)


class _Plan:
    """The figures of a plan, and its lines."""

    stopped_counting = False  # the world may have more training tasks than `tasks`

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self.config, self.parts, self.recipe = config, parts, parts.recipe
        self.warnings: list[str] = []
        self.pictures = ""
        lora, train = config.policy.lora, config.train
        parts.check_prompt()
        self.size = ModelSize.read(parts.base_path, 0 if lora is None else lora.rank)
        most = train.num_tasks if config.env.tasks is not None else min(train.num_tasks, MOST_COUNTED)
        self.tasks = parts.tasks(Split.TRAIN, most, config.seed)
        self.stopped_counting = len(self.tasks) == most < train.num_tasks
        self.held_out = held_out_tasks(parts)
        self.limit = parts.context_limit
        self.talk = self._measure()
        self.num_trajectories = train.tasks_per_update * train.group_size
        world = parts.agent.world
        own_most = self.talk.longest(world.max_turns, config.sampling.max_tokens) - self.talk.system
        own_most *= world.max_turns if self.talk.largest else 1
        self.typical_tokens = self.talk.system + round(self.num_trajectories * self.talk.own)
        self.most_tokens = self.talk.system + self.num_trajectories * own_most
        self._find_problems(self.talk.longest(world.max_turns, config.sampling.max_tokens))

    # --- measuring ------------------------------------------------------------------------

    def _measure(self) -> Talk:
        """Token counts of a few demonstrated episodes, or of a first prompt where there is no oracle."""
        parts, config = self.parts, self.config
        (turn,) = parts.envs.reset(self.tasks[:1])
        opened = parts.player.open_conversation(turn.observation).state
        first = opened.prompt_ids.size
        if opened.images:
            counts = " + ".join(f"{span.length}" for span in opened.images)
            self.pictures = f"{_many(len(opened.images), 'picture')} a turn, {counts} of its tokens"
        system = self._num_shared()
        if not parts.envs.envs[0].has_oracle:
            reply, turns = config.sampling.max_tokens / 2, parts.agent.world.max_turns / 2
            between = float(first - system)
            own = first - system + turns * reply + (turns - 1) * between
            return Talk(system, first, reply, between, turns, own)
        shown = parts.demonstrations(NUM_SHOWN, 0.3, config.seed)
        max_turns, rewarded = parts.agent.world.max_turns, parts.demonstrated_parts
        if (warning := describe_imbalance(shown, config.rewards, rewarded, max_turns)) is not None:
            self.warnings.append(warning)
        steps = [step for t in shown for step in t.steps]
        most = config.sampling.max_tokens
        reply = sum(min(step.num_units, most) for step in steps) / len(steps)
        sizes = [[step.state.prompt_ids.size for step in t.steps] for t in shown]  # type: ignore[union-attr]
        grown = [
            b.state.prompt_ids.size - a.state.prompt_ids.size - a.num_units  # type: ignore[union-attr]
            for t in shown
            for a, b in pairwise(t.steps)
        ]
        between = sum(grown) / len(grown) if grown else float(first - system)
        too_long = sum(max(step.num_units - most, 0) for step in steps)  # what a policy could not write
        own = (pack(steps).num_tokens - system - too_long) / len(shown)
        first = max(first, *(row[0] for row in sizes))
        largest = 0 if parts.agent.keeps_dialogue else max(max(row) for row in sizes)
        return Talk(
            system,
            first,
            reply,
            max(between, 0.0),
            len(steps) / len(shown),
            own,
            max(grown, default=0),
            largest,
        )

    def _num_shared(self) -> int:
        """Leading tokens that the first prompts of two tasks have in common."""
        turns = self.parts.envs.reset(self.tasks[:2]) if len(self.parts.envs.envs) > 1 else []
        opened = [self.parts.player.open_conversation(t.observation) for t in turns if t.error is None]
        if len(opened) < 2:
            return 0
        one, other = (conversation.state for conversation in opened)
        pairs = zip(one.prompt_ids, other.prompt_ids, strict=False)
        shortest = min(one.prompt_ids.size, other.prompt_ids.size)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), shortest)
        shown = zip(one.images, other.images, strict=False)
        return min([same, *(a.start for a, b in shown if a != b)])

    def _find_problems(self, longest: int | None) -> None:
        """`longest` counts the tokens of the longest possible episode; None: a robot's have none."""
        train, recipe = self.config.train, self.recipe
        if recipe.needs_groups and train.group_size == 1:
            self.warnings.append(
                f"recipe {recipe.name} compares siblings, and train.group_size is 1: every advantage is 0"
            )
        if train.minibatches > train.tasks_per_update:
            self.warnings.append(
                f"groups stay whole: {train.minibatches} minibatches of {train.tasks_per_update} groups "
                f"become {train.tasks_per_update}"
            )
        if longest is not None and longest > self.limit:
            self.warnings.append(
                f"an episode may grow to {longest} tokens, over the limit of {self.limit}; it is cut there"
            )
        if longest is not None and train.token_budget is not None and train.token_budget < longest:
            self.warnings.append(
                f"train.token_budget ({train.token_budget}) is below the longest step ({longest} tokens), "
                "which then makes a microbatch of its own"
            )
        for asked, found, name in (
            (train.num_tasks, len(self.tasks), "train.num_tasks"),
            (self.config.eval.num_tasks, len(self.held_out), "eval.num_tasks"),
        ):
            if found < asked and not (name == "train.num_tasks" and self.stopped_counting):
                self.warnings.append(f"{name} is {asked}, but this world has {found}")
        if recipe.replay or recipe.curriculum:
            self.warnings.append(f"recipe {recipe.name} asks for replay or curriculum: not in this loop")
        if longest is not None and self.config.sampling.top_p < 1:
            self.warnings.append("sampling.top_p is below 1: ratios are those of the whole distribution")

    # --- telling --------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """At most thirty."""
        config, talk, world = self.config, self.talk, self.parts.agent.world
        yield "what would be done (nothing is trained now)"
        yield _line(
            "world",
            f"{config.env.name}: {self._describe_tasks()}, {len(self.held_out):,} held out; "
            f"up to {_many(world.max_turns, 'turn')} of {_many(world.actions.max_per_turn, 'action')}",
        )
        yield _line(
            "agent",
            f"{config.agent.strategy}; first prompt {talk.first} tokens ({talk.system} the same for every "
            f"task); a turn adds about {talk.reply + talk.between:.0f} (reply {talk.reply:.0f} of at most "
            f"{config.sampling.max_tokens}), {talk.turns:.1f} turns",
        )
        if self.pictures:
            yield _line("", self.pictures)
        yield from self._policy_lines()
        yield from self._recipe_lines(self.recipe)
        yield from self._update_lines()
        yield from self._run_lines()
        yield from self._memory_lines()
        yield from (_line("warning", text) for text in self.warnings)

    def _describe_tasks(self) -> str:
        counted = f"{len(self.tasks):,} training tasks"
        wanted = self.config.train.num_tasks
        return f"at least {counted} ({wanted:,} wanted)" if self.stopped_counting else counted

    def _policy_lines(self) -> Iterator[str]:
        policy = self.config.policy
        critic = self.parts.critic_kind
        kind = "all are trained" if policy.lora is None else f"{self.num_trained:,} trained (adapters)"
        yield _line(
            "policy",
            f"{policy.model}: {self.size.num_parameters:,} parameters, {kind}; {policy.dtype} on "
            f"{policy.device}, context {self.limit}, critic {critic}",
        )

    def _recipe_lines(self, recipe: Recipe) -> Iterator[str]:
        whitened = f", whitened over {recipe.whiten}" if recipe.whiten else ""
        yield _line("recipe", f"{recipe.name}: credit {recipe.credit or 'none'}{whitened}")
        yield _line("", f"loss {recipe.loss}, entropy x {recipe.entropy_coef:g}")
        value = "no critic" if recipe.value is None else f"{recipe.value.loss} at {recipe.value.sites}"
        kl = recipe.kl
        held = "no KL" if kl is None else f"KL {kl.estimator} x {kl.coef:g} in the {kl.kl_in}"
        coef = f" x {recipe.value_coef:g}" if recipe.value is not None else ""
        yield _line("", f"value {value}{coef}; {held}")
        rewarded = " + ".join(recipe.reward_parts or ("task",))
        yield _line("reward", f"{rewarded}, times {self.config.rewards.scale:g}")
        optimizer, train = self.config.train.optimizer, self.config.train
        yield _line(
            "optimizer",
            f"{optimizer.kind} at {optimizer.learning_rate:g}, {train.schedule} after "
            f"{_many(train.warmup_updates, 'update')} of warm-up; gradients up to {optimizer.grad_clip:g}",
        )

    def _update_lines(self) -> Iterator[str]:
        train = self.config.train
        rounds = _rounds(self.num_trajectories, len(self.parts.envs.envs))
        yield _line(
            "an update",
            f"{self.num_trajectories} trajectories = {train.tasks_per_update} tasks x {train.group_size}, "
            f"played {_listed(rounds)} at a time",
        )
        sizes = minibatch_sizes(train.tasks_per_update, train.group_size, train.minibatches)
        yield _line(
            "",
            f"{self.num_trajectories} trajectories in {_many(len(sizes), 'minibatch')} of {_listed(sizes)}; "
            f"{_many(train.update_epochs, 'pass')} = "
            f"{_many(len(sizes) * train.update_epochs, 'optimizer step')}",
        )
        sampled = self.num_trajectories * self.talk.turns * self.talk.reply
        world = self.parts.agent.world
        most = self.num_trajectories * world.max_turns * self.config.sampling.max_tokens
        yield _line("", f"about {sampled:,.0f} tokens sampled, at most {most:,}")
        micro = "whole minibatches at once"
        if train.token_budget is not None:
            per = self.typical_tokens / len(sizes)
            micro = f"{_many(math.ceil(per / train.token_budget), 'microbatch')} each"
        yield _line(
            "",
            f"about {self.typical_tokens:,} tokens learnt from (shared prefixes once), "
            f"at most {self.most_tokens:,}; {micro}",
        )

    def _run_lines(self) -> Iterator[str]:
        config, train = self.config, self.config.train
        warm = config.warm_start
        if warm.chats is not None:
            count = sum(1 for _ in read_rows(warm.chats, "warm_start.chats"))
            yield _line(
                "warm start",
                f"{_many(count, 'chat')} of {Path(warm.chats).name} in batches of {warm.batch_size}, "
                f"{'at most ' if has_goal(warm) else ''}{_many(self._num_imitated(count), 'update')}",
            )
        if warm.num_demos:
            count = self._num_demonstrations()
            yield _line(
                "warm start",
                f"{count} demonstrations with {warm.noise:g} noise in batches of {warm.batch_size}, "
                f"{'at most ' if has_goal(warm) else ''}{_many(self._num_imitated(count), 'update')}",
            )
        if warm.is_wanted and has_goal(warm):
            yield _line("", f"until {describe_goal(warm)}, looked at every {warm.check_every} updates")
        limits = [f"{train.num_updates} updates = {train.num_updates * self.num_trajectories:,} episodes"]
        limits += [f"{train.max_env_steps:,} actions"] if train.max_env_steps is not None else []
        limits += [f"{train.max_seconds:g} s"] if train.max_seconds is not None else []
        often = f"every {config.eval.every} updates, " if config.eval.every else ""
        episodes = len(self.held_out) * config.eval.samples_per_task
        yield _line("the run", f"{' or '.join(limits)}, whichever comes first" if limits[1:] else limits[0])
        yield _line("", f"evaluated {often}before and after, {episodes} episodes each")

    def _num_demonstrations(self) -> int:
        """A robot's tasks are each shown once; other agents' are repeated where they are few."""
        warm = self.config.warm_start
        is_short = self.parts.is_robot and len(self.tasks) < self.config.train.num_tasks
        num_demos = min(warm.num_demos, len(self.tasks)) if is_short else warm.num_demos
        return num_demos * warm.demos_per_task

    def _num_imitated(self, count: int) -> int:
        """Updates of a warm start from so many demonstrations."""
        return num_batches(self.config.warm_start, count)

    # --- memory and disk ------------------------------------------------------------------

    @property
    def num_trained(self) -> int:
        """Parameters that get a gradient, the critic's own backbone included."""
        size = self.size
        own = size.num_hidden_matrices if self.parts.critic_kind == "own" else 0
        head = 0 if self.parts.critic_kind == "none" else size.width + 1
        return (size.num_parameters if self.config.policy.lora is None else size.num_linear) + own + head

    def _memory_lines(self) -> Iterator[str]:
        parts = self.memory()
        total = sum(parts.values())
        yield _line("memory", f"about {_bytes(total)}, besides Python and torch themselves")
        told = [f"{name} {_bytes(count)}" for name, count in parts.items() if count]
        yield _line("", ", ".join(told[:4]) + ",")
        yield _line("", ", ".join(told[4:]))
        one = self.checkpoint_bytes()
        keep = self.config.checkpoint.keep
        yield _line(
            "disk",
            f"{_bytes(one)} per checkpoint, {keep} and the best are kept; trajectories up to "
            f"{_bytes(self.config.checkpoint.trajectories_mb * 1e6)}",
        )

    def memory(self) -> dict[str, float]:
        """Bytes by what they hold, at the largest moment."""
        config, size = self.config, self.size
        unit = _BYTES[config.policy.dtype]
        weights = size.num_parameters * unit
        trained = self.num_trained * unit
        per = self.typical_tokens / max(1, min(config.train.minibatches, config.train.tasks_per_update))
        if config.train.token_budget is not None:
            per = min(per, config.train.token_budget)
        floats = size.layers * (_PER_WIDTH * size.width + _PER_MLP * size.mlp_width)
        if config.policy.gradient_checkpointing:
            floats = size.layers * size.width + floats // size.layers
        rows = per * self.num_trajectories * self.talk.turns * self.talk.reply / self.typical_tokens
        return {
            "weights": weights + trained - (weights if config.policy.lora is None else 0),
            "gradients": trained,
            "optimizer": self._optimizer_bytes(),
            "reference": weights if self.recipe.needs_reference and config.policy.lora is None else 0,
            "engine's weights": weights,
            "engine's cache": self._cache_floats() * unit,
            "activations": per * floats * unit + rows * size.vocabulary * 8,
        }

    def _optimizer_bytes(self) -> int:
        """AdamW keeps two numbers per parameter, Muon one; of 16-bit weights there is a float32 original."""
        count, unit = 2 * self.num_trained, max(_BYTES[self.config.policy.dtype], 4)
        if self.config.train.optimizer.kind == "muon":
            whole = self.config.policy.lora is None
            count -= self.size.num_hidden_matrices if whole else self.size.num_linear
        if self.config.policy.dtype == "bfloat16" and self.config.policy.lora is None:
            count += self.num_trained
        return count * unit

    def _cache_floats(self) -> int:
        """On a GPU every slot has its full length at once; on a CPU lengths double as they are needed."""
        length = self.limit
        if self.config.policy.device == "cpu":
            world = self.parts.agent.world
            longest = self.talk.longest(world.max_turns, self.config.sampling.max_tokens)
            length = min(self.limit, 2 ** math.ceil(math.log2(max(longest, 256))))
        return (self.config.engine.slots + 1) * self.size.layers * 2 * self.size.kv_width * length

    def checkpoint_bytes(self) -> float:
        """Weights, critic and optimizer of one numbered checkpoint."""
        unit = _BYTES[self.config.policy.dtype]
        return self.num_trained * unit + self._optimizer_bytes() + 3e5


def minibatch_sizes(num_groups: int, group_size: int, count: int) -> list[int]:
    """How many trajectories each minibatch of an update has.

    >>> minibatch_sizes(130, 1, 3), minibatch_sizes(5, 3, 2)
    ([44, 43, 43], [9, 6])
    """
    task = Task("plan", {})
    groups = (f"{i}" for i in range(num_groups) for _ in range(group_size))
    trajectories = [Trajectory(task, [], Status.FAILURE, group) for group in groups]
    return [len(part) for part in split(trajectories, count)]


def _rounds(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]


def _listed(sizes: Sequence[int]) -> str:
    """`44, 43, 43`, or `12 x 16` where there are many."""
    if len(sizes) <= 6:
        return ", ".join(map(str, sizes))
    low, high = min(sizes), max(sizes)
    return f"{low}" if low == high else f"{low} to {high}"


def _many(count: int, word: str) -> str:
    """`1 pass`, `2 passes`, `3 updates`."""
    ending = "" if count == 1 else "es" if word.endswith(("s", "tch")) else "s"
    return f"{count} {word}{ending}"


def _bytes(count: float) -> str:
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} GB"


def _line(name: str, text: str) -> str:
    return f"{name:<11} {text}"
