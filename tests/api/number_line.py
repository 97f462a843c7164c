"""A small environment, reward and credit function of one's own, and settings for runs of a second."""

from __future__ import annotations

import random
from typing import Any

import stepwell as sw
from stepwell.algos import Timeline
from stepwell.config.base import Settings

QUICK: dict[str, Any] = {
    "train": {"num_updates": 2, "tasks_per_update": 4, "group_size": 2, "num_tasks": 8},
    "eval": {"num_tasks": 4, "samples_per_task": 1, "every": 1},
    "warm_start": {"num_demos": 16, "batch_size": 8, "max_updates": 2, "check_every": 2},
    "monitor": {"console": False, "tensorboard": False, "report": False},
}


class LineOptions(Settings):
    """Options of the line."""

    size: int = 6


class NumberLine(sw.Env):
    """Step from one number to another."""

    name = "number_line"
    Options = LineOptions

    @property
    def description(self) -> sw.EnvDescription:
        guide = "Change the number until it equals the target."
        return sw.EnvDescription(self.name, guide, sw.ActionSpace(("More", "Less"), max_per_turn=3), 3)

    @classmethod
    def make_task(cls, options: LineOptions, seed: int) -> sw.Task:
        number, target = random.Random(seed).sample(range(options.size), 2)
        return sw.Task(cls.name, {"number": number, "target": target}, seed=seed)

    def begin(self, task: sw.Task, seed: int) -> None:
        self.number, self.target = task.content["number"], task.content["target"]

    def act(self, action: str) -> sw.Effect:
        self.number += 1 if action == "More" else -1
        is_done = self.number == self.target
        return sw.Effect(1.0 if is_done else -0.01, terminated=is_done, success=is_done)

    def observe(self) -> sw.Observation:
        return sw.Observation(f"number {self.number}, target {self.target}")

    def oracle(self) -> list[str]:
        gap = self.target - self.number
        return ["More"] * gap if gap > 0 else ["Less"] * -gap


@sw.credit(compares_siblings=True)
def centred(tl: Timeline, *, scale: float = 1.0) -> sw.CreditResult:
    """An episode's reward minus its group's mean, for every token."""
    _, groups = tl.read_group_labels().unique(return_inverse=True)
    is_sibling = (groups[:, None] == groups[None, :]).to(tl.returns.dtype)
    means = is_sibling @ tl.returns / is_sibling.sum(dim=1)
    return sw.CreditResult.of_trajectories(tl, scale * (tl.returns - means))


def brevity(step: Any) -> float:
    """Longer replies pay less."""
    return -0.001 * len(step.text)
