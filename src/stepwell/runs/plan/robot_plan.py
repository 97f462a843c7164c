"""The plan of a robot's run: what it will do and needs, without training anything.

One world is opened and one short demonstration played, for the length of an episode; the policy is
built (it is small), so its size is exact. The memory of a simulator is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.config.run import RunConfig
from stepwell.core import Split
from stepwell.runs.build.components import Parts, held_out_tasks
from stepwell.runs.plan.run_plan import _bytes, _line, _listed, _many, _Plan, _rounds, minibatch_sizes
from stepwell.training import num_batches

_NUM_SHOWN = 2


class RobotPlan(_Plan):
    """The figures of a robot's plan, and its lines."""

    def __init__(self, config: RunConfig, parts: Parts) -> None:
        self.config, self.parts, self.recipe = config, parts, parts.recipe
        self.warnings: list[str] = []
        parts.check_prompt()
        self.tasks = parts.tasks(Split.TRAIN, config.train.num_tasks, config.seed)
        self.held_out = held_out_tasks(parts)
        self.num_trajectories = config.train.tasks_per_update * config.train.group_size
        self.world, self.shape = parts.envs.envs[0].world, parts.policy.model.shape
        self.chunk = self.shape.config.chunk
        self.num_parameters = sum(p.numel() for _, p in parts.policy.named_parameters())
        self.actions = self._measure()
        self._find_problems(longest=None)

    def _measure(self) -> float:
        """Actions of a demonstrated episode, or half the limit where nobody demonstrates."""
        if not self.parts.envs.envs[0].has_oracle:
            return self.world.max_actions / 2
        shown = self.parts.demonstrations(_NUM_SHOWN, 0.0, self.config.seed)
        counts = {t.task.id: int(t.info["num_actions"]) for t in shown}  # type: ignore[arg-type]
        return sum(counts.values()) / len(counts)

    def lines(self) -> Iterator[str]:
        """At most thirty."""
        config, world = self.config, self.world
        yield "what would be done (nothing is trained now)"
        yield _line(
            "world",
            f"{config.env.name}: {len(self.tasks):,} training tasks, {len(self.held_out):,} held out; "
            f"up to {_many(world.max_actions, 'action')}, an expert needs about {self.actions:.0f}",
        )
        shown = ", ".join(f"{name} {list(spec.shape)}" for name, spec in world.arrays.items())
        yield _line("sees", f"{shown}, and an instruction")
        yield from self._head_lines()
        yield from self._recipe_lines(self.recipe)
        yield from self._update_lines()
        yield from self._run_lines()
        yield _line("memory", f"about {_bytes(self.num_parameters * 20)}, besides simulators and torch")
        yield from (_line("warning", text) for text in self.warnings)

    def _head_lines(self) -> Iterator[str]:
        vla, policy, size = self.shape.config, self.config.policy, self.num_parameters
        drawn = f"{vla.bins} bins" if vla.head == "token" else f"{vla.denoising_steps} denoising steps"
        yield _line(
            "policy",
            f"{vla.head} head, chunks of {vla.chunk} x {self.world.action_dim}, {drawn}; {size:,} "
            f"parameters, {policy.dtype} on {policy.device}, critic {self.parts.critic_kind}",
        )

    def _update_lines(self) -> Iterator[str]:
        train = self.config.train
        most_actions = self.num_trajectories * self.world.max_actions
        at_a_time = _listed(_rounds(self.num_trajectories, len(self.parts.envs.envs)))
        yield _line(
            "an update",
            f"{self.num_trajectories} trajectories = {train.tasks_per_update} tasks x {train.group_size}, "
            f"played {at_a_time} at a time; at most {most_actions:,} actions",
        )
        sizes = minibatch_sizes(train.tasks_per_update, train.group_size, train.minibatches)
        most = -(-self.world.max_actions // self.chunk) * max(sizes)
        micro = "whole minibatches at once"
        if train.micro_batch is not None:
            micro = f"at most {_many(-(-most // train.micro_batch), 'microbatch')} each"
        yield _line(
            "",
            f"{_many(len(sizes), 'minibatch')} of {_listed(sizes)} trajectories (at most {most:,} steps), "
            f"{micro}; {_many(train.update_epochs, 'pass')} = "
            f"{_many(len(sizes) * train.update_epochs, 'optimizer step')}",
        )

    def _num_imitated(self, count: int) -> int:
        """Every demonstration is shown from each place of a chunk."""
        return num_batches(self.config.warm_start, count * self.chunk)
