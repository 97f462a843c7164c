"""An environment under test, and what fails a check."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from stepwell.config.base import Settings
from stepwell.core import Task
from stepwell.core.errors import ContractError
from stepwell.envs.check_episodes import follow_oracle, solves_randomly

HELD_OUT_SHARE = 0.2


def require_that(held: bool, otherwise: str) -> None:
    """Raise `ContractError` with this text unless the condition holds."""
    if not held:
        raise ContractError(otherwise)


@dataclass
class Probe:
    """An environment under test, with tasks to play."""

    kind: Any
    options: Settings
    num_tasks: int
    min_turns_per_s: float

    def env(self) -> Any:
        """A fresh copy."""
        return self.kind(self.options)

    @cached_property
    def shared_env(self) -> Any:
        """One copy for all checks that need no fresh one."""
        return self.env()

    @cached_property
    def tasks(self) -> list[Task]:
        """The tasks of the first seeds."""
        return [self.kind.make_task(self.options, seed) for seed in range(self.num_tasks)]

    @cached_property
    def random_share(self) -> float:
        """Share of tasks that random turns solve."""
        rng = random.Random(0)
        env = self.env()
        return sum(solves_randomly(env, task, rng) for task in self.tasks) / self.num_tasks

    @cached_property
    def oracle_episodes(self) -> list[tuple[bool, int]]:
        """For every task, whether following the oracle solved it, and in how many turns."""
        env = self.env()
        return [follow_oracle(env, task) for task in self.tasks]
