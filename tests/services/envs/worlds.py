"""Worlds that misbehave, to be hosted."""

from __future__ import annotations

import threading

from stepwell.core import Task
from stepwell.envs.base import Effect
from stepwell.envs.frozenlake.env import FrozenLake


class Stubborn(FrozenLake):
    """A lake whose Up never comes back and whose Down raises."""

    name = "stubborn"
    may_go_on = threading.Event()

    @classmethod
    def make_task(cls, options: object, seed: int) -> Task:
        task = FrozenLake.make_task(options, seed)  # type: ignore[arg-type]
        return Task(cls.name, task.content, seed=seed)

    def act(self, action: str) -> Effect:
        if action == "Up":
            self.may_go_on.wait()
        if action == "Down":
            raise OSError("the simulator is gone")
        return super().act(action)
