"""Deliveries made from a delivery: easier, alike or harder.

    easier    the player, the parcel or the door moves one block, and the way gets shorter
    sibling   the town is mirrored, or turned over its diagonal where it is square
    harder    one of the three moves one block, and the way gets longer

A variant can be delivered in the time there is. A sibling takes as many actions as its parent.
"""

from __future__ import annotations

import random
from dataclasses import replace

from stepwell.core import Task, TaskRelation
from stepwell.envs.courier.options import CourierOptions
from stepwell.envs.courier.town import Delivery, Town, count_actions
from stepwell.envs.grid import make_neighbour_table

MAX_DRAWS = 30


def make_town_variant(
    name: str, options: CourierOptions, task: Task, relation: TaskRelation, rng: random.Random
) -> Task | None:
    """A variant of a task; None if none was found in a few draws."""
    town = Town.from_content(task.content)
    before = count_needed(town)
    for _ in range(MAX_DRAWS):
        changed = _mirror_town(town, rng) if relation is TaskRelation.SIBLING else _move_thing(town, rng)
        if changed == town or len({changed.start, changed.parcel, changed.door}) < 3:
            continue
        needed = count_needed(changed)
        is_right_way = {
            TaskRelation.EASIER: needed < before,
            TaskRelation.SIBLING: needed == before,
            TaskRelation.HARDER: needed > before,
        }[relation]
        if is_right_way and needed <= options.max_actions:
            return Task(name, changed.to_content(), task.instruction, task.seed, task.tags)
    return None


def count_needed(town: Town) -> int:
    """Fewest actions of a task."""
    return count_actions(town, Delivery(town.start))


def _move_thing(town: Town, rng: random.Random) -> Town:
    """The town with its start, its parcel or its door one block further."""
    near = make_neighbour_table(town.num_rows, town.num_columns)
    thing = rng.randrange(3)
    if thing == 0:
        return replace(town, start=rng.choice(near[town.start]))
    if thing == 1:
        return replace(town, parcel=rng.choice(near[town.parcel]))
    return replace(town, door=rng.choice(near[town.door]))


def _mirror_town(town: Town, rng: random.Random) -> Town:
    width, height = town.num_columns, town.num_rows
    way = rng.choice(["columns", "rows", *(["diagonal"] if width == height else [])])

    def move(place: int) -> int:
        row, column = divmod(place, width)
        if way == "columns":
            return row * width + width - 1 - column
        return (height - 1 - row) * width + column if way == "rows" else column * width + row

    return replace(town, start=move(town.start), parcel=move(town.parcel), door=move(town.door))
