"""Sokoban for language agents: rooms to solve, seen as text, as an image, or both.

Rewards of one executed action, added up: +1 for a box pushed onto a target and -1 for one pushed
off (so that pushing to and fro earns nothing; from one target onto the next is 0), +10 for the
action that solves the room, -0.1 for every action that does not. A blocked move is executed and
changes nothing. The solved room, `max_steps` actions and the turn limit end the episode; a box in
a dead corner does not.

The text of an observation is the room alone, one character per cell and one line per row:
`#` wall, `_` floor, `O` target, `X` box, `P` player, `*` box on target, `S` player on target.
"""

from __future__ import annotations

import random
from functools import cached_property
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, EnvDescription, Observation, StateForm, Task, TaskRelation
from stepwell.envs.base import Effect, Env
from stepwell.envs.grid import NAMES
from stepwell.envs.sokoban.generator import make_task
from stepwell.envs.sokoban.guide import make_examples, write_guide
from stepwell.envs.sokoban.options import SokobanOptions
from stepwell.envs.sokoban.room import draw_empty_room, draw_room, read_room
from stepwell.envs.sokoban.solver import open_solver
from stepwell.envs.sokoban.text import write_sentences, write_structured
from stepwell.envs.sokoban.tiles import TILES
from stepwell.envs.sokoban.variants import make_room_variant
from stepwell.envs.sokoban.vocabulary import VOCABULARY
from stepwell.envs.tables import StateTable, build_state_table
from stepwell.envs.tiles import Image, draw_board

SOLVED, PLACED, ACTED = 10.0, 1.0, -0.1


class Sokoban(Env):
    """Push every box onto a target."""

    name: ClassVar[str] = "sokoban"
    is_quick: ClassVar[bool] = True
    Options: ClassVar[type[Settings]] = SokobanOptions
    options: SokobanOptions

    @cached_property
    def description(self) -> EnvDescription:
        """The description for agents."""
        actions = ActionSpace(NAMES, self.options.max_actions_per_turn)
        return EnvDescription(
            self.name,
            write_guide(self.options),
            actions,
            self.options.max_turns,
            make_examples(actions),
            VOCABULARY,
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """A random room that can be solved in time."""
        return make_task(cls.name, options, seed)

    @classmethod
    def make_variant(
        cls, options: Any, task: Task, relation: TaskRelation, rng: random.Random
    ) -> Task | None:
        """The room mirrored, or begun elsewhere."""
        return make_room_variant(cls.name, options, task, relation, rng)

    def begin(self, task: Task, seed: int) -> None:
        """Enter the task's room."""
        content: dict[str, Any] = task.content
        self.room, self.situation = read_room(content["room"])
        self._empty = draw_empty_room(self.room)
        self._num_steps = 0

    def act(self, action: str) -> Effect:
        """Walk or push one cell."""
        room, before = self.room, self.situation
        self.situation = after = room.move(before.player, before.boxes, action)
        self._num_steps += 1
        is_last = self._num_steps >= self.options.max_steps
        if after.boxes == before.boxes:
            return Effect(ACTED, terminated=is_last)
        gained = (after.boxes & room.targets).bit_count() - (before.boxes & room.targets).bit_count()
        if after.boxes == room.targets:
            return Effect(SOLVED + PLACED * gained, terminated=True, success=True)
        return Effect(ACTED + PLACED * gained, terminated=is_last)

    def observe(self) -> Observation:
        """The room as text, image, or both."""
        shown = self.options.observation
        if shown == "text":
            return Observation(self._draw_text())
        return Observation(self._draw_text() if shown == "both" else "", (self.render(),))

    def oracle(self) -> list[str]:
        """A shortest solution; [] where a box can no longer come home."""
        room = self.room
        solver = open_solver(room.num_rows, room.num_columns, room.walls, room.targets)
        return solver.solve(self.situation) or []

    def state(self) -> dict[StateForm, str]:
        """Sentences, room and JSON."""
        return {
            StateForm.NATURAL_LANGUAGE: write_sentences(self.room, self.situation),
            StateForm.SYMBOLIC: self._draw_text(),
            StateForm.STRUCTURED: write_structured(self.room, self.situation),
        }

    def table(self) -> StateTable | None:
        """Situations as states, as far as there is time for."""
        room, options = self.room, self.options
        in_time = min(options.max_turns * options.max_actions_per_turn, options.max_steps)
        return build_state_table(
            self.situation,
            NAMES,
            move=lambda situation, action: room.move(*situation, action),
            is_over=lambda situation: situation.boxes == room.targets,
            is_solved=lambda situation: situation.boxes == room.targets,
            max_actions=in_time - self._num_steps,
        )

    def render(self) -> Image:
        """The room as tiles."""
        return draw_board(TILES, self._draw_text(), self.options.tile_size)

    def _draw_text(self) -> str:
        return draw_room(self._empty, self.room, self.situation)
