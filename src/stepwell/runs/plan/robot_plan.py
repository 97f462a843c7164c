"""The plan of a robot's run.

One environment is opened and one demonstration is played, to measure the length of an episode. The size
of the policy is exact, and a new policy is not built for it. The memory of a simulator is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.core.text import format_count
from stepwell.runs.build.components import Components
from stepwell.runs.plan.base_plan import TITLE, BasePlan, round_sizes, split_minibatches
from stepwell.runs.plan.text import format_bytes, format_line, format_sizes
from stepwell.training import count_batches

_NUM_SHOWN = 1  # compiling the model takes most of the time of a plan already


class RobotPlan(BasePlan):
    """The figures of a robot's plan, and its lines."""

    def __init__(self, components: Components) -> None:
        components.check_first_observation()
        super().__init__(components)
        self.robot = components.robot
        self.env_spec, self.chunk = self.robot.env_spec, self.robot.chunk
        self.num_parameters = self.robot.count_parameters()
        self.num_actions = self._measure_actions()
        self.find_problems()

    def _measure_actions(self) -> float:
        """Actions of a demonstrated episode, or half the limit where there is no oracle."""
        if not self.components.envs.envs[0].has_oracle:
            return self.env_spec.max_actions / 2
        shown = self.components.play_demonstrations(_NUM_SHOWN, 0.0, self.config.seed)
        counts = {t.task.id: int(t.info["num_actions"]) for t in shown}  # type: ignore[arg-type]
        return sum(counts.values()) / len(counts)

    def lines(self) -> Iterator[str]:
        config, spec = self.config, self.env_spec
        yield TITLE
        tried = " (1 episode tried)" if self.components.envs.envs[0].has_oracle else ""
        yield format_line(
            "env",
            f"{config.env.name}: {self.describe_tasks()}; up to {format_count(spec.max_actions, 'action')}, "
            f"an expert needs about {self.num_actions:.0f}{tried}",
        )
        arrays = ", ".join(f"{name} {list(array.shape)}" for name, array in spec.arrays.items())
        yield format_line("sees", f"{arrays}, and an instruction")
        yield from self._describe_head()
        yield from self.describe_recipe()
        yield from self._update_lines()
        yield from self.run_lines()
        needed = format_bytes(self.num_parameters * 20)
        yield format_line("memory", f"about {needed}, besides simulators and torch")
        yield from (format_line("warning", text) for text in self.warnings)

    def _describe_head(self) -> Iterator[str]:
        vla, policy = self.robot.vla, self.config.policy
        drawn = f"{vla.bins} bins" if vla.head == "token" else f"{vla.denoising_steps} denoising steps"
        yield format_line(
            "policy",
            f"{vla.head} head, chunks of {vla.chunk} x {self.env_spec.action_dim}, {drawn}; "
            f"{self.num_parameters:,} parameters, {policy.dtype} on {policy.device}, "
            f"critic {self.components.critic_kind}",
        )

    def _update_lines(self) -> Iterator[str]:
        train = self.config.train
        most_actions = self.num_trajectories * self.env_spec.max_actions
        at_a_time = format_sizes(round_sizes(self.num_trajectories, len(self.components.envs.envs)))
        yield format_line(
            "an update",
            f"{self.num_trajectories} trajectories = {train.tasks_per_update} tasks x {train.group_size}, "
            f"played {at_a_time} at a time; at most {most_actions:,} actions",
        )
        sizes = split_minibatches(train.tasks_per_update, train.group_size, train.minibatches)
        most = self.robot.horizon * max(sizes)
        micro = "whole minibatches at once"
        if train.micro_batch is not None:
            micro = f"at most {format_count(-(-most // train.micro_batch), 'microbatch')} each"
        yield format_line("", self.describe_minibatches(f" trajectories (at most {most:,} steps), {micro}"))

    def count_demonstrations(self) -> int:
        """A robot's tasks are each shown `demos_per_task` times, however few there are."""
        warm = self.config.warm_start
        has_all = self.trained.is_too_small
        num_demos = min(warm.num_demos, len(self.tasks)) if has_all else warm.num_demos
        return num_demos * warm.demos_per_task

    def count_warm_updates(self, count: int) -> int:
        """Every demonstration is shown from each place of a chunk."""
        return count_batches(self.config.warm_start, count * self.chunk)
