"""FrozenLake for language agents: boards to cross, seen as text, as an image, or both.

Rewards: +10 for the move that reaches the goal, -0.1 for every other executed move (a bump
against the edge and the fall into a hole are executed moves). The goal and a hole end the
episode, as does the turn limit. Beside the reward, each move says how much nearer to the goal it
came on the shortest way around the holes (`process`: 1, 0 or -1; a fall is -1).

The text of an observation is the board alone, one character per cell and one line per row:
`_` ice, `O` hole, `G` goal, `P` player, `X` player in a hole, `*` player on the goal.
"""

from __future__ import annotations

import random
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from stepwell.config.base import Settings
from stepwell.core import ActionSpace, EnvDescription, InputError, Observation, StateForm, Task, TaskRelation
from stepwell.envs.base import Effect, Env
from stepwell.envs.frozenlake.guide import make_examples, write_guide
from stepwell.envs.frozenlake.lake import (
    HOLE,
    SLIPS,
    Lake,
    compute_goal_distances,
    find_shortest_way,
    make_task,
    plan_on_slippery_ice,
)
from stepwell.envs.frozenlake.options import FrozenLakeOptions
from stepwell.envs.frozenlake.text import (
    draw_empty_board,
    draw_player,
    write_compass,
    write_sentences,
    write_structured,
)
from stepwell.envs.frozenlake.tiles import TILES
from stepwell.envs.frozenlake.variants import make_board_variant
from stepwell.envs.frozenlake.vocabulary import VOCABULARY
from stepwell.envs.grid import NAMES
from stepwell.envs.tables import StateTable, build_state_table
from stepwell.envs.tiles import Image, draw_board

REACHED = Effect(10.0, terminated=True, success=True, process=1.0)
FELL = Effect(-0.1, terminated=True, process=-1.0)
MOVED = {nearer: Effect(-0.1, process=float(nearer)) for nearer in (-1, 0, 1)}


@lru_cache(maxsize=4096, typed=True)  # many episodes play the same board
def _open_lake(
    rows: tuple[str, ...], row: int, column: int, goal_row: int, goal_column: int
) -> tuple[Lake, tuple[int, ...], str]:
    """A board with the distances to its goal and its text without the player."""
    lake = Lake.from_rows(list(rows), (row, column), (goal_row, goal_column))
    return lake, compute_goal_distances(lake), draw_empty_board(lake)


class FrozenLake(Env):
    """Cross the ice to the goal without falling into a hole."""

    name: ClassVar[str] = "frozenlake"
    has_process: ClassVar[bool] = True
    is_quick: ClassVar[bool] = True
    Options: ClassVar[type[Settings]] = FrozenLakeOptions
    options: FrozenLakeOptions

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
        """A random board that can be crossed in time."""
        return make_task(cls.name, options, seed)

    @classmethod
    def make_variant(
        cls, options: Any, task: Task, relation: TaskRelation, rng: random.Random
    ) -> Task | None:
        """A board with one change."""
        return make_board_variant(cls.name, options, task, relation, rng)

    @classmethod
    def name_family(cls, task: Task) -> str:
        """Boards by the number of their holes."""
        board: Any = task.content["board"]
        count = sum(row.count(HOLE) for row in board)
        return f"{count} hole{'' if count == 1 else 's'}"

    @property
    def is_deterministic(self) -> bool:
        """Slippery ice leaves it to chance."""
        return not self.options.is_slippery

    def begin(self, task: Task, seed: int) -> None:
        """Stand at the start of the task's board."""
        content: dict[str, Any] = task.content
        if content.get("is_slippery", False) != self.options.is_slippery:
            raise InputError(f"task {task.id} and env.options.is_slippery disagree about slippery ice")
        rows, (row, column), goal = tuple(content["board"]), content["start"], content["goal"]
        self.lake, self._away, self._board = _open_lake(rows, row, column, *goal)
        self.place = self.lake.start
        self._num_left = self.options.max_actions
        self._slip = random.Random(seed).choice if self.options.is_slippery else None

    def act(self, action: str) -> Effect:
        """Move one cell."""
        lake, before = self.lake, self.place
        if self._slip is not None:
            action = self._slip(SLIPS[action])
        self.place = place = lake.moves[before][action]
        self._num_left -= 1
        if place == lake.goal:
            return REACHED
        return FELL if lake.holes[place] else MOVED[self._away[before] - self._away[place]]

    def observe(self) -> Observation:
        """The board as text, image, or both."""
        shown = self.options.observation
        text = self._draw_text() if shown != "image" else ""
        if self.options.compass:
            text = f"{write_compass(self.lake, self.place)}\n{text}".strip()
        return Observation(text, () if shown == "text" else (self.render(),))

    def oracle(self) -> list[str]:
        """A shortest way to the goal; on slippery ice the best next turn."""
        if self.options.is_slippery:
            num_turns = self.options.max_turns - self._num_turns
            return plan_on_slippery_ice(self.lake, self.place, num_turns, self.options.max_actions_per_turn)
        return find_shortest_way(self.lake, self.place)

    def state(self) -> dict[StateForm, str]:
        """Sentences, board and JSON."""
        return {
            StateForm.NATURAL_LANGUAGE: write_sentences(self.lake, self.place),
            StateForm.SYMBOLIC: self._draw_text(),
            StateForm.STRUCTURED: write_structured(self.lake, self.place),
        }

    def table(self) -> StateTable | None:
        """Cells as states; None on slippery ice."""
        lake = self.lake
        if self.options.is_slippery:
            return None
        return build_state_table(
            self.place,
            NAMES,
            move=lambda place, action: lake.moves[place][action],
            is_over=lambda place: lake.holes[place] or place == lake.goal,
            is_solved=lambda place: place == lake.goal,
            max_actions=self._num_left,
        )

    def render(self) -> Image:
        """The board as tiles."""
        return draw_board(TILES, self._draw_text(), self.options.tile_size)

    def _draw_text(self) -> str:
        return draw_player(self._board, self.lake, self.place)
