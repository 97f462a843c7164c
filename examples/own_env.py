"""An environment of your own: step from one number to another.

    stepwell check examples/own_env.py:NumberLine
    stepwell train --env examples/own_env.py:NumberLine

`stepwell init env NAME` writes a longer one with a test. An installed package offers its environments by
name: `[project.entry-points."stepwell.envs"]` with the line `number_line = "my_package.env:NumberLine"`.
"""

import random

from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, EnvDescription, Observation, Task
from stepwell.envs import Effect, Env


class NumberLineOptions(Settings):
    """What a run may set under env.options."""

    size: int = Field(20, ge=3, le=20, description="numbers from 0 to size - 1")


class NumberLine(Env):
    """Step from one number to another."""

    name = "number_line"
    Options = NumberLineOptions

    @property
    def description(self) -> EnvDescription:
        guide = "Change the number until it equals the target. More adds 1, Less takes 1 away."
        return EnvDescription(self.name, guide, ActionSpace(("More", "Less"), max_per_turn=3), max_turns=7)

    @classmethod
    def make_task(cls, options: NumberLineOptions, seed: int) -> Task:
        number, target = random.Random(seed).sample(range(options.size), 2)
        return Task(cls.name, {"number": number, "target": target}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        self.number, self.target = task.content["number"], task.content["target"]

    def act(self, action: str) -> Effect:
        self.number += 1 if action == "More" else -1
        is_done = self.number == self.target
        return Effect(1.0 if is_done else -0.01, terminated=is_done, success=is_done)

    def observe(self) -> Observation:
        return Observation(f"number {self.number}, target {self.target}")

    def oracle(self) -> list[str]:
        gap = self.target - self.number
        return ["More"] * gap if gap > 0 else ["Less"] * -gap
