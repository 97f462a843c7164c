"""Household for language agents: find things in a room, treat them, and put them where they belong.

One turn is one command in ALFWorld's style, in words. Every observation names the task, says what the last
command did, what is in reach and in hand, and lists the commands that are possible, so it stands alone where
prompts are made afresh each turn. A text that is none of them does nothing, and the reason is shown.
Meeting the goal gives 1 and ends the episode; nothing else is rewarded or punished.

What is played is a household made here (`made`) or, with `games`, one of ALFWorld's own (`alfworld`); both
answer the same questions, and this class passes them on.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, EnvDescription, InputError, Observation, StateForm, Task
from stepwell.envs.base import Effect, Env
from stepwell.envs.household.alfworld import PublishedGame, make_game_task
from stepwell.envs.household.generated_household import GeneratedHousehold
from stepwell.envs.household.generator import make_task
from stepwell.envs.household.guide import make_examples, write_guide
from stepwell.envs.household.options import HouseholdOptions


class Household(Env):
    """Find things, treat them, and put them where they belong."""

    name: ClassVar[str] = "household"
    Options: ClassVar[type[Settings]] = HouseholdOptions
    tells_golden: ClassVar[bool] = True
    options: HouseholdOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._played: GeneratedHousehold | PublishedGame | None = None

    @cached_property
    def world(self) -> EnvDescription:
        """What agents are told."""
        shown = {} if self.options.games else make_examples(self.options.catalogue)
        return EnvDescription(self.name, write_guide(self.options), ActionSpace(), self.options.turns, shown)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A household with a goal, or one of ALFWorld's games."""
        if options.games is not None:
            return make_game_task(cls.name, options, seed)
        return make_task(cls.name, options, seed)

    def begin(self, task: Task, seed: int) -> None:
        """Enter the room."""
        self.close()
        kind = PublishedGame if "game" in task.content else GeneratedHousehold
        self._played = kind(self.options, task)

    @property
    def game(self) -> GeneratedHousehold | PublishedGame:
        """The household of the task being played."""
        if self._played is None:
            raise InputError(f"{self.name} has no task yet; call reset first")
        return self._played

    def act(self, action: str) -> Effect:
        """Do one command, if it is possible."""
        return self.game.act(action)

    def observe(self) -> Observation:
        """Task, result, view, hand and commands."""
        return Observation(self.game.write_text())

    def random_action(self, rng: random.Random) -> str:
        """One of the possible commands, all alike."""
        return rng.choice(self.game.list_commands())

    def oracle(self) -> list[str]:
        """A shortest plan; with `oracle = "explorer"` the next command of one who must look for things."""
        return self.game.oracle()

    def golden_steps(self) -> int | None:
        """Commands of a proven shortest plan from here; None for ALFWorld's games."""
        return self.game.golden_steps()

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON; of a game of ALFWorld's what is shown."""
        return self.game.describe_state()

    def close(self) -> None:
        """Leave the room."""
        if self._played is not None:
            self._played.close()
        self._played = None
