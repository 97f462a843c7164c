"""Household for language agents: find things in a room, treat them, and put them where they belong.

One turn is one text command in ALFWorld's style. Every observation names the task, the result of the last
command, what is in reach and in the hand, and the possible commands, so it is complete even if the prompt has
no history. Any other text does nothing, and the observation gives the reason. Reaching the goal gives 1 and
ends the episode; there are no other rewards or penalties.

The game is a generated household (`generated_household`) or, with `games`, one of ALFWorld's own
(`alfworld`). Both have the same interface, and this class delegates to it.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, EnvDescription, InputError, Observation, StateForm, Task, TaskRelation
from stepwell.envs.base import Effect, Env
from stepwell.envs.household.alfworld import PublishedGame, make_game_task
from stepwell.envs.household.generated_household import GeneratedHousehold
from stepwell.envs.household.generator import make_task
from stepwell.envs.household.guide import make_examples, write_guide
from stepwell.envs.household.options import HouseholdOptions
from stepwell.envs.household.variants import make_household_variant, read_goal_instruction


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
    def description(self) -> EnvDescription:
        """The description for agents."""
        shown = {} if self.options.games else make_examples(self.options.catalogue)
        return EnvDescription(self.name, write_guide(self.options), ActionSpace(), self.options.turns, shown)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A household with a goal, or one of ALFWorld's games."""
        if options.games is not None:
            return make_game_task(cls.name, options, seed)
        return make_task(cls.name, options, seed)

    @classmethod
    def make_variant(
        cls, options: Any, task: Task, relation: TaskRelation, rng: random.Random
    ) -> Task | None:
        """The same room with another goal."""
        return make_household_variant(cls.name, options, task, relation, rng)

    @classmethod
    def read_instruction(cls, options: Any, parent: Task, instruction: str) -> Task | None:
        """The goal that an instruction words, in the same room."""
        return read_goal_instruction(cls.name, options, parent, instruction)

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
        """Execute one command, if it is possible."""
        return self.game.act(action)

    def observe(self) -> Observation:
        """Task, result, view, hand and commands."""
        return Observation(self.game.write_text())

    def random_action(self, rng: random.Random) -> str:
        """One of the possible commands, uniformly."""
        return rng.choice(self.game.list_commands())

    def oracle(self) -> list[str]:
        """A shortest plan; with `oracle = "explorer"`, the next command of a player that must search for
        things."""
        return self.game.oracle()

    def golden_steps(self) -> int | None:
        """Commands of a proven shortest plan from the current state; None for ALFWorld's games."""
        return self.game.golden_steps()

    def state(self) -> dict[StateForm, str]:
        """Sentences and JSON; for ALFWorld's games, the observation."""
        return self.game.describe_state()

    def close(self) -> None:
        """Leave the room."""
        if self._played is not None:
            self._played.close()
        self._played = None
