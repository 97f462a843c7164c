"""Boards made from a board: easier, alike or harder.

    easier    a hole freezes over, or the start moves one cell towards the goal
    sibling   the board is mirrored or turned over its diagonal, or a hole moves
    harder    a hole opens, or the start moves one cell away

A variant can be crossed, in no fewer and no more moves than the options allow. An easier one needs at most as
many moves as its parent, a harder one at least as many.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from stepwell.core import JSON, Task, TaskRelation
from stepwell.envs.frozenlake.lake import HOLE, ICE, Lake
from stepwell.envs.frozenlake.options import FrozenLakeOptions
from stepwell.envs.grid import find_distance, make_neighbour_table

MAX_DRAWS = 20


class Board(NamedTuple):
    """A board while it is changed; cells are numbered row by row."""

    num_columns: int
    holes: tuple[bool, ...]
    start: int
    goal: int

    def count_moves(self) -> int:
        """Moves of a shortest way; -1 if there is none."""
        neighbours = make_neighbour_table(len(self.holes) // self.num_columns, self.num_columns)
        return find_distance(neighbours, list(self.holes), self.start, self.goal)


def make_board_variant(
    name: str, options: FrozenLakeOptions, task: Task, relation: TaskRelation, rng: random.Random
) -> Task | None:
    """A variant of a task's board; None if none was found in a few draws."""
    content: dict[str, JSON] = dict(task.content)
    lake = Lake.from_rows(content["board"], content["start"], content["goal"])  # type: ignore[arg-type]
    board = Board(lake.num_columns, lake.holes, lake.start, lake.goal)
    before = board.count_moves()
    for _ in range(MAX_DRAWS):
        changed = _change_board(board, relation, rng)
        needed = changed.count_moves()
        fits = options.min_actions <= needed <= options.max_actions
        is_wrong_way = (relation is TaskRelation.EASIER and needed > before) or (
            relation is TaskRelation.HARDER and needed < before
        )
        if fits and not is_wrong_way and changed != board:
            return Task(name, {**content, **_write_board(changed)}, task.instruction, task.seed, task.tags)
    return None


def _change_board(board: Board, relation: TaskRelation, rng: random.Random) -> Board:
    if relation is TaskRelation.SIBLING:
        return _mirror_board(board, rng) if rng.random() < 0.5 else _open_hole(_drop_hole(board, rng), rng)
    if rng.random() < 0.5:
        return _move_start(board, rng)
    return _drop_hole(board, rng) if relation is TaskRelation.EASIER else _open_hole(board, rng)


def _drop_hole(board: Board, rng: random.Random) -> Board:
    holes = [place for place, hole in enumerate(board.holes) if hole]
    return _set_hole(board, rng.choice(holes), False) if holes else board


def _open_hole(board: Board, rng: random.Random) -> Board:
    """Open a hole somewhere on the ice."""
    ice = [
        place for place, hole in enumerate(board.holes) if not hole and place not in (board.start, board.goal)
    ]
    return _set_hole(board, rng.choice(ice), True) if ice else board


def _set_hole(board: Board, place: int, is_hole: bool) -> Board:
    return board._replace(holes=(*board.holes[:place], is_hole, *board.holes[place + 1 :]))


def _move_start(board: Board, rng: random.Random) -> Board:
    neighbours = make_neighbour_table(len(board.holes) // board.num_columns, board.num_columns)[board.start]
    free = [place for place in neighbours if not board.holes[place] and place != board.goal]
    return board._replace(start=rng.choice(free)) if free else board


def _mirror_board(board: Board, rng: random.Random) -> Board:
    width, height = board.num_columns, len(board.holes) // board.num_columns
    ways = ["columns", "rows", *(["diagonal"] if width == height else [])]
    way = rng.choice(ways)

    def move(place: int) -> int:
        row, column = divmod(place, width)
        if way == "columns":
            return row * width + width - 1 - column
        return (height - 1 - row) * width + column if way == "rows" else column * width + row

    holes = [False] * len(board.holes)
    for place, hole in enumerate(board.holes):
        holes[move(place)] = hole
    return Board(width, tuple(holes), move(board.start), move(board.goal))


def _write_board(board: Board) -> dict[str, JSON]:
    width = board.num_columns
    cells = "".join(HOLE if hole else ICE for hole in board.holes)
    return {
        "board": [cells[at : at + width] for at in range(0, len(cells), width)],
        "start": list(divmod(board.start, width)),
        "goal": list(divmod(board.goal, width)),
    }
