"""Environments as a user writes them, for tests: short number lines with different pay."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from stepwell.core import ActionSpace, EnvDescription, Observation, Task
from stepwell.envs import Effect, Env


class ShortLine(Env):
    """Step to a number; a success pays 50."""

    name = "short_line"
    pay: ClassVar[float] = 50.0
    max_turns: ClassVar[int] = 5

    @property
    def description(self) -> EnvDescription:
        return EnvDescription(
            self.name, "Reach b.", ActionSpace(("More", "Less"), max_per_turn=2), self.max_turns
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"numbers": random.Random(seed).sample(range(5), 2)}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        self.a, self.b = task.content["numbers"]  # type: ignore[misc]

    def act(self, action: str) -> Effect:
        self.a += 1 if action == "More" else -1
        is_there = self.a == self.b
        return Effect(self.pay * is_there, terminated=is_there, success=is_there)

    def observe(self) -> Observation:
        return Observation(f"{self.a} and {self.b}")

    def oracle(self) -> list[str]:
        return ["More" if self.b > self.a else "Less"] * abs(self.b - self.a)


class PennyLine(ShortLine):
    """A success pays less than the form of replies does in FrozenLake's settings."""

    pay = 1.0


class UnpaidLine(ShortLine):
    """A success pays nothing."""

    pay = 0.0


class OracleFreeLine(ShortLine):
    """Nobody knows a solution."""

    has_oracle = False

    def oracle(self) -> list[str]:
        raise NotImplementedError
