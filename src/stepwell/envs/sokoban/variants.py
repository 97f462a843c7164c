"""Rooms made from a room: easier, alike or harder.

    easier    the same walls and targets, player and boxes where fewer moves are left
    sibling   the room is mirrored or turned over its diagonal
    harder    the same walls and targets, player and boxes where more moves are left

Every variant can be solved in as many moves as the options allow: situations are taken from those that
walking backwards from the solved room reaches. As in a task of the environment, no box is on a target yet.
"""

from __future__ import annotations

import random

from stepwell.core import JSON, Task, TaskRelation
from stepwell.envs.sokoban.generator import find_solution_lengths
from stepwell.envs.sokoban.options import SokobanOptions
from stepwell.envs.sokoban.room import draw_empty_room, draw_room, read_room


def make_room_variant(
    name: str, options: SokobanOptions, task: Task, relation: TaskRelation, rng: random.Random
) -> Task | None:
    """A variant of a task's room; None if there is none."""
    rows = [str(row) for row in task.content["room"]]  # type: ignore[union-attr]
    if relation is TaskRelation.SIBLING:
        changed = _mirror_room(rows, options, rng)
        return None if changed == rows else _make_task(name, task, changed)
    room, situation = read_room(rows)
    lengths = find_solution_lengths(room, options.longest)
    before = lengths.get(situation, options.longest)
    fitting = [
        other
        for other, length in lengths.items()
        if length >= options.min_actions
        and not other.boxes & room.targets
        and (length < before if relation is TaskRelation.EASIER else length > before)
    ]
    if not fitting:
        return None
    nearest = sorted(fitting, key=lambda other: abs(lengths[other] - before))
    chosen = rng.choice(nearest[: max(1, len(nearest) // 4)])
    return _make_task(name, task, draw_room(draw_empty_room(room), room, chosen).split("\n"))


def _mirror_room(rows: list[str], options: SokobanOptions, rng: random.Random) -> list[str]:
    ways = ["columns", "rows", *(["diagonal"] if options.num_rows == options.num_columns else [])]
    way = rng.choice(ways)
    if way == "rows":
        return rows[::-1]
    return (
        [row[::-1] for row in rows]
        if way == "columns"
        else ["".join(cells) for cells in zip(*rows, strict=True)]
    )


def _make_task(name: str, parent: Task, rows: list[str]) -> Task:
    room: list[JSON] = list(rows)
    return Task(name, {**parent.content, "room": room}, parent.instruction, parent.seed, parent.tags)
