"""Environments that misbehave, for tests: a lake that raises, pays too much, or cuts episodes."""

from __future__ import annotations

import sys
from typing import ClassVar

from stepwell.config.base import Settings
from stepwell.core import Observation, StateForm, Task
from stepwell.envs.base import Effect
from stepwell.envs.frozenlake.env import FrozenLake
from stepwell.envs.frozenlake.options import FrozenLakeOptions
from stepwell.envs.tiles import Image


class BrokenOptions(FrozenLakeOptions):
    """When it breaks."""

    rows: tuple[int, ...] = tuple(range(32))
    times: int = 1_000_000
    place: str = "act"


class BrokenLake(FrozenLake):
    """A lake that raises where the start lies in one of `rows`, the first `times` times it could."""

    name: ClassVar[str] = "broken"
    Options: ClassVar[type[Settings]] = BrokenOptions
    options: BrokenOptions
    num_raised: ClassVar[int] = 0

    def begin(self, task: Task, seed: int) -> None:
        super().begin(task, seed)
        self._maybe("begin")

    def act(self, action: str) -> Effect:
        self._maybe("act")
        return super().act(action)

    def observe(self) -> Observation:
        if self._task is not None:
            self._maybe("observe")
        return super().observe()

    def state(self) -> dict[StateForm, str]:
        self._maybe("state")
        return super().state()

    def _maybe(self, place: str) -> None:
        is_chosen = place == self.options.place and self.lake.to_cell(self.lake.start)[0] in self.options.rows
        if is_chosen and BrokenLake.num_raised < self.options.times:
            BrokenLake.num_raised += 1
            raise RuntimeError("the simulator is gone")


class Undrawable(FrozenLake):
    """A lake that ends the process when it is drawn, with half of a character in its last words."""

    name: ClassVar[str] = "undrawable"

    def render(self) -> Image:
        sys.exit("no screen \ud83d")


class RewardOptions(FrozenLakeOptions):
    """What every move is worth."""

    reward: float = 1.0


class RichLake(FrozenLake):
    """A lake that pays what its options say for every move."""

    name: ClassVar[str] = "rich"
    Options: ClassVar[type[Settings]] = RewardOptions
    options: RewardOptions

    def act(self, action: str) -> Effect:
        effect = super().act(action)
        return effect._replace(reward=self.options.reward * (1 + self.place))


class CutLake(FrozenLake):
    """A lake whose first turn is cut short, wherever it led."""

    name: ClassVar[str] = "cut"

    def act(self, action: str) -> Effect:
        effect = super().act(action)
        return effect if effect.terminated else effect._replace(truncated=True)


class OneLake(FrozenLake):
    """An environment with a single task."""

    name: ClassVar[str] = "one"

    @classmethod
    def make_task(cls, options: FrozenLakeOptions, seed: int) -> Task:
        return super().make_task(options, 0)
