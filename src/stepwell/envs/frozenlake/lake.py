"""The lake: a board as tables, its dynamics, how it is made and how it is crossed best.

Dynamics are those of Gymnasium's FrozenLake: a move off the board stays; holes and the goal end
the episode; on slippery ice a move goes one third each as meant and to its two sides.
Boards are drawn (start, goal, then every other cell a hole with the given chance) until one
can be crossed in no fewer and no more moves than asked for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stepwell.core import JSON, ConfigError, InputError, Task
from stepwell.envs.frozenlake.options import FrozenLakeOptions
from stepwell.envs.grid import MAX_SIDE, Cell, find_distance, find_distances, make_neighbour_table, move_table

ICE, HOLE = "_", "O"
RING = ("Left", "Down", "Right", "Up")  # the sides of a move are its neighbours in this ring
MAX_DRAWS = 20_000
MAX_AHEAD = 3


def list_slips(action: str) -> tuple[str, str, str]:
    """The three equally likely moves of an action on slippery ice."""
    at = RING.index(action)
    return RING[at - 1], action, RING[(at + 1) % 4]


SLIPS = {action: list_slips(action) for action in RING}


@dataclass(frozen=True, slots=True)
class Lake:
    """One board. `holes[cell]` says where one falls in; `moves[cell][action]` is the next cell."""

    num_rows: int
    num_columns: int
    holes: tuple[bool, ...]
    start: int
    goal: int
    moves: tuple[dict[str, int], ...]

    @classmethod
    def from_rows(cls, rows: list[str], start: Cell, goal: Cell) -> Lake:
        """A lake from rows of `_` (ice) and `O` (hole)."""
        num_columns = len(rows[0]) if rows else 0
        if max(len(rows), num_columns) > MAX_SIDE:
            raise InputError(
                f"a board has at most {MAX_SIDE} rows and columns, got {len(rows)} x {num_columns}"
            )
        cells = "".join(rows)
        if not cells or {*map(len, rows)} != {num_columns} or set(cells) - {ICE, HOLE}:
            raise InputError(f"board must be rows of equal length made of '_' and 'O', got {rows}")
        places = []
        for name, cell in (("start", start), ("goal", goal)):
            row, column = cell
            if not (0 <= row < len(rows) and 0 <= column < num_columns) or rows[row][column] == HOLE:
                raise InputError(f"{name} {list(cell)} must lie on the ice of the board")
            places.append(row * num_columns + column)
        if places[0] == places[1]:
            raise InputError(f"start and goal are both at {list(start)}")
        holes = tuple([cell == HOLE for cell in cells])
        moves = move_table(len(rows), num_columns)
        return cls(len(rows), num_columns, holes, places[0], places[1], moves)

    def to_cell(self, place: int) -> Cell:
        """Row and column of a numbered cell."""
        return divmod(place, self.num_columns)


def make_task(name: str, options: FrozenLakeOptions, seed: int) -> Task:
    """The board of a seed, as a task."""
    size = options.size
    neighbours = make_neighbour_table(size, size)
    rng = random.Random(seed)
    chance = rng.random
    for _ in range(MAX_DRAWS):
        start, goal = int(chance() * size * size), int(chance() * size * size)
        holes = [chance() < options.hole_rate for _ in range(size * size)]
        holes[start] = holes[goal] = False
        needed = find_distance(neighbours, holes, start, goal)
        if options.min_actions <= needed <= options.max_actions:
            cells = "".join(HOLE if hole else ICE for hole in holes)
            content: dict[str, JSON] = {
                "board": [cells[at : at + size] for at in range(0, size * size, size)],
                "start": list(divmod(start, size)),
                "goal": list(divmod(goal, size)),
            }
            if options.is_slippery:
                content["is_slippery"] = True
            return Task(name, content, seed=seed)
    raise ConfigError(
        f"no {size} x {size} board with hole_rate {options.hole_rate} needs between {options.min_actions} "
        f"and {options.max_actions} moves (seed {seed}, {MAX_DRAWS} draws); lower env.options.min_actions"
    )


@lru_cache(maxsize=4096)
def _compute_goal_distances(lake_key: tuple[int, tuple[bool, ...], int]) -> tuple[int, ...]:
    num_columns, holes, goal = lake_key
    moves = move_table(len(holes) // num_columns, num_columns)
    return tuple(find_distances(moves, holes, goal))


def compute_goal_distances(lake: Lake) -> tuple[int, ...]:
    """Moves from each cell to the goal around the holes."""
    return _compute_goal_distances((lake.num_columns, lake.holes, lake.goal))


def find_shortest_way(lake: Lake, place: int) -> list[str]:
    """A shortest list of moves from `place` to the goal; [] if there is none (or one is there)."""
    away = compute_goal_distances(lake)
    way: list[str] = []
    while away[place] > 0 and not lake.holes[place]:
        action = next(a for a, to in lake.moves[place].items() if away[to] == away[place] - 1)
        way.append(action)
        place = lake.moves[place][action]
    return way


def plan_on_slippery_ice(lake: Lake, place: int, num_turns: int, per_turn: int) -> list[str]:
    """The next turn's moves that most often lead to the goal within `num_turns` turns; [] if none do.

    Within a turn nothing is seen, so moves are planned blindly there (at most MAX_AHEAD of them),
    and afresh from wherever they end.
    """
    chances = np.arange(len(lake.holes)) == lake.goal
    ended = chances | np.array(lake.holes)
    to = np.array(  # [action, slip, cell]
        [
            [[c if ended[c] else moves[slip] for c, moves in enumerate(lake.moves)] for slip in SLIPS[a]]
            for a in RING
        ]
    )
    values, best = chances.astype(np.float64), np.zeros(len(lake.holes), np.int64)
    names: list[tuple[str, ...]] = []
    for _ in range(num_turns):
        plans, names = values[None], [()]
        found, found_names = [], []
        for _ in range(min(per_turn, MAX_AHEAD)):  # one more move before every plan so far
            plans = plans[:, to].mean(axis=2).reshape(-1, len(values))
            names = [(action, *plan) for plan in names for action in RING]
            found.append(plans)
            found_names += names
        every, names = np.concatenate(found), found_names
        best, values = every.argmax(axis=0), every.max(axis=0)
    return list(names[best[place]]) if values[place] > 0 and not ended[place] else []
