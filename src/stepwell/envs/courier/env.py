"""Courier: a town of square blocks, a parcel to fetch, a door to give it at.

The only reward is 1 for the delivery, which ends the episode, as does the turn limit. Beside the reward, each
action says how much nearer to the delivery it came on the shortest way (`process`: 1, 0 or -1).

An observation is one short line that says where parcel and door are, seen from the player: `parcel 2 down
3 right, door 1 up`, then `parcel in hand, door here`. Walls there are none: what has to be learnt is to read
the line, and to act on it in the right order over many turns.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, EnvDescription, Observation, StateForm, Task, TaskRelation
from stepwell.envs.base import Effect, Env
from stepwell.envs.courier.guide import GUIDE, make_examples
from stepwell.envs.courier.options import CourierOptions
from stepwell.envs.courier.text import (
    COMPASS,
    MOVES,
    draw_map,
    write_line,
    write_sentences,
    write_structured,
)
from stepwell.envs.courier.tiles import TILES
from stepwell.envs.courier.town import (
    ACTIONS,
    Delivery,
    Town,
    apply_action,
    count_actions,
    fetch_and_wander,
    make_task,
    plan_delivery,
)
from stepwell.envs.courier.variants import count_needed, make_town_variant
from stepwell.envs.courier.vocabulary import VOCABULARY
from stepwell.envs.tables import StateTable, build_state_table
from stepwell.envs.tiles import Image, draw_board

DELIVERED = Effect(1.0, terminated=True, success=True, process=1.0)
ACTED = {nearer: Effect(process=float(nearer)) for nearer in (-1, 0, 1)}


class Courier(Env):
    """Fetch the parcel and give it at the door."""

    name: ClassVar[str] = "courier"
    has_process: ClassVar[bool] = True
    Options: ClassVar[type[Settings]] = CourierOptions
    options: CourierOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        actions = ActionSpace(ACTIONS, self.options.max_actions_per_turn)
        examples = make_examples(actions)
        return EnvDescription(self.name, GUIDE, actions, self.options.max_turns, examples, VOCABULARY)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A random delivery that can be made in time."""
        return make_task(cls.name, options, seed)

    @classmethod
    def make_variant(
        cls, options: Any, task: Task, relation: TaskRelation, rng: random.Random
    ) -> Task | None:
        """A delivery with one change."""
        return make_town_variant(cls.name, options, task, relation, rng)

    @classmethod
    def name_family(cls, task: Task) -> str:
        """Deliveries by the fewest actions they take."""
        return f"{count_needed(Town.from_content(task.content))} actions"

    def begin(self, task: Task, seed: int) -> None:
        """Stand at the start, the parcel where it lies."""
        self.town = Town.from_content(task.content)
        self.now = Delivery(self.town.start)
        self._num_left, self._seed = self.options.max_actions, seed

    def act(self, action: str) -> Effect:
        """Walk one block, take or give."""
        before = self.now
        self.now = apply_action(self.town, before, action)
        self._num_left -= 1
        if self.now.is_delivered:
            return DELIVERED
        return ACTED[count_actions(self.town, before) - count_actions(self.town, self.now)]

    def observe(self) -> Observation:
        """One line: where parcel and door are."""
        words = COMPASS if self.options.door_words == "compass" else MOVES
        return Observation(write_line(self.town, self.now, words))

    def oracle(self) -> list[str]:
        """A shortest way to the delivery; of a fetcher, the next few actions."""
        if self.options.oracle == "fetcher" and not self.now.is_delivered:
            chance = random.Random(f"{self._seed}/{self._num_left}")
            return fetch_and_wander(self.town, self.now, self.options.max_actions_per_turn, chance)
        return plan_delivery(self.town, self.now)

    def state(self) -> dict[StateForm, str]:
        """Sentences, map and JSON."""
        return {
            StateForm.NATURAL_LANGUAGE: write_sentences(self.town, self.now),
            StateForm.SYMBOLIC: draw_map(self.town, self.now),
            StateForm.STRUCTURED: write_structured(self.town, self.now),
        }

    def table(self) -> StateTable:
        """Places without and with the parcel as states."""
        return build_state_table(
            self.now,
            ACTIONS,
            move=lambda now, action: apply_action(self.town, now, action),
            is_over=lambda now: now.is_delivered,
            is_solved=lambda now: now.is_delivered,
            max_actions=self._num_left,
        )

    def render(self) -> Image:
        """The town as tiles."""
        return draw_board(TILES, draw_map(self.town, self.now), self.options.tile_size)
