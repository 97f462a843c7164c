"""Rooms that can be solved, made backwards: from every solved situation, all ways in are walked.

Draw inner walls and targets; then undo moves and pushes, breadth first, from the solved
situations. What is reached after n undone actions is exactly what needs n actions to solve, so
that a situation with a solution length as asked for can be picked at random, and its
solvability needs no search. (The forward solver agrees; the tests compare both.)
"""

from __future__ import annotations

import random

from stepwell.core import JSON, ConfigError, Task
from stepwell.envs.grid import OPPOSITE
from stepwell.envs.sokoban.options import SokobanOptions
from stepwell.envs.sokoban.room import Situation, SokobanRoom, draw_empty_room, draw_room

MAX_DRAWS = 5_000


def make_task(name: str, options: SokobanOptions, seed: int) -> Task:
    """The room of a seed, as a task."""
    rng = random.Random(seed)
    for _ in range(MAX_DRAWS):
        room = _draw_room(options, rng)
        if room is None:
            continue
        situation = _draw_situation(room, options, rng)
        if situation is not None:
            rows: list[JSON] = list(draw_room(draw_empty_room(room), room, situation).split("\n"))
            return Task(name, {"room": rows}, seed=seed)
    raise ConfigError(
        f"no {options.num_rows} x {options.num_columns} room with {options.num_boxes} boxes needs between "
        f"{options.min_actions} and {options.longest} actions (seed {seed}, {MAX_DRAWS} draws); lower "
        "env.options.min_actions or wall_rate, or give more turns"
    )


def find_solution_lengths(room: SokobanRoom, longest: int) -> dict[Situation, int]:
    """Every situation that can be solved in at most `longest` actions, with the fewest it takes."""
    floor = [cell for cell in range(len(room.steps)) if not room.walls >> cell & 1]
    found = {Situation(cell, room.targets): 0 for cell in floor if not room.targets >> cell & 1}
    undo = _undo_table(room)
    frontier = list(found)
    for length in range(1, longest + 1):
        reached = []
        for player, boxes in frontier:
            for origin, beyond in undo[player]:
                if boxes >> origin & 1:
                    continue
                before = Situation(origin, boxes)
                if before not in found:
                    found[before] = length
                    reached.append(before)
                if beyond >= 0 and boxes >> beyond & 1:  # or a box was pushed from here to there
                    before = Situation(origin, boxes ^ (1 << beyond) ^ (1 << player))
                    if before not in found:
                        found[before] = length
                        reached.append(before)
        frontier = reached
    return found


def _undo_table(room: SokobanRoom) -> list[list[tuple[int, int]]]:
    """For every cell: from where a player can have come, and where a box it pushed then lies (or -1)."""
    return [
        [(leads[OPPOSITE[action]], ahead) for action, ahead in leads.items() if leads[OPPOSITE[action]] >= 0]
        for leads in room.steps
    ]


def _draw_room(options: SokobanOptions, rng: random.Random) -> SokobanRoom | None:
    """Inner walls and targets; None where the largest open part is too small."""
    rows, columns = options.num_rows, options.num_columns
    inner = [row * columns + column for row in range(1, rows - 1) for column in range(1, columns - 1)]
    floor = _find_largest_part({cell for cell in inner if rng.random() >= options.wall_rate}, columns)
    if len(floor) < 2 * options.num_boxes + 1:
        return None
    targets = sum(1 << cell for cell in rng.sample(floor, options.num_boxes))
    walls = (1 << rows * columns) - 1 - sum(1 << cell for cell in floor)
    return SokobanRoom.from_sets(rows, columns, walls, targets)


def _find_largest_part(open_cells: set[int], num_columns: int) -> list[int]:
    """The largest connected part, in reading order; what is cut off from it becomes wall."""
    best: set[int] = set()
    while open_cells:
        part, frontier = set(), [min(open_cells)]
        while frontier:
            cell = frontier.pop()
            if cell in open_cells:
                open_cells.discard(cell)
                part.add(cell)
                frontier += [cell - 1, cell + 1, cell - num_columns, cell + num_columns]
        best = max(best, part, key=len)
    return sorted(best)


def _draw_situation(room: SokobanRoom, options: SokobanOptions, rng: random.Random) -> Situation | None:
    """A situation with a solution as long as asked for and no box on a target yet, if there is one."""
    fitting = [
        situation
        for situation, length in find_solution_lengths(room, options.longest).items()
        if length >= options.min_actions and not situation.boxes & room.targets
    ]
    return fitting[int(rng.random() * len(fitting))] if fitting else None
