"""The town: its blocks as a table of moves, how a task is made, and the shortest delivery.

Player, parcel and door lie on three different blocks. Every block can be walked on, so the fewest actions are
the blocks to the parcel, those from there to the door, and one action each for taking and giving.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepwell.core import JSON, ConfigError, InputError, Task
from stepwell.envs.courier.options import CourierOptions
from stepwell.envs.grid import MAX_SIDE, NAMES, Cell, move_table

TAKE, GIVE = "Take", "Give"
ACTIONS = (*NAMES, TAKE, GIVE)
MAX_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Town:
    """One task: blocks are numbered row by row, `moves[block][action]` is the next block."""

    num_rows: int
    num_columns: int
    start: int
    parcel: int
    door: int
    moves: tuple[dict[str, int], ...]

    @classmethod
    def from_content(cls, content: Any) -> Town:
        """The town of a task's content."""
        num_rows, num_columns = content["size"]
        if not (1 <= num_rows <= MAX_SIDE and 1 <= num_columns <= MAX_SIDE):
            raise InputError(
                f"a town has at most {MAX_SIDE} rows and columns (at least 1), got {num_rows} x {num_columns}"
            )
        places = []
        for name in ("start", "parcel", "door"):
            row, column = content[name]
            if not (0 <= row < num_rows and 0 <= column < num_columns):
                raise InputError(
                    f"{name} {[row, column]} lies outside the town of {num_rows} x {num_columns}"
                )
            places.append(row * num_columns + column)
        if len(set(places)) < 3:
            raise InputError("start, parcel and door of a courier's task must be three different blocks")
        start, parcel, door = places
        return cls(num_rows, num_columns, start, parcel, door, move_table(num_rows, num_columns))

    def to_cell(self, place: int) -> Cell:
        """Row and column of a numbered block."""
        return divmod(place, self.num_columns)

    def to_content(self) -> dict[str, JSON]:
        """The content of a task in this town."""
        return {
            "size": [self.num_rows, self.num_columns],
            "start": list(self.to_cell(self.start)),
            "parcel": list(self.to_cell(self.parcel)),
            "door": list(self.to_cell(self.door)),
        }

    def count_blocks(self, place: int, other: int) -> int:
        """Moves from one block to another."""
        (row, column), (to_row, to_column) = self.to_cell(place), self.to_cell(other)
        return abs(to_row - row) + abs(to_column - column)


class Delivery(NamedTuple):
    """Where the player stands, and where the parcel is: in its place, in hand, or delivered."""

    place: int
    has_parcel: bool = False
    is_delivered: bool = False


def apply_action(town: Town, now: Delivery, action: str) -> Delivery:
    """The situation after one action; taking and giving do nothing in the wrong place."""
    if action == TAKE:
        return now._replace(has_parcel=True) if now.place == town.parcel and not now.is_delivered else now
    if action == GIVE:
        is_there = now.has_parcel and now.place == town.door
        return Delivery(now.place, is_delivered=True) if is_there else now
    return now._replace(place=town.moves[now.place][action])


def count_actions(town: Town, now: Delivery) -> int:
    """Fewest actions until the parcel is delivered."""
    if now.is_delivered:
        return 0
    if now.has_parcel:
        return town.count_blocks(now.place, town.door) + 1
    return town.count_blocks(now.place, town.parcel) + town.count_blocks(town.parcel, town.door) + 2


def plan_delivery(town: Town, now: Delivery) -> list[str]:
    """A shortest list of actions that delivers the parcel: up and down first, then left and right."""
    if now.is_delivered:
        return []
    rest = [*_list_moves(town, town.parcel if not now.has_parcel else now.place, town.door), GIVE]
    return rest if now.has_parcel else [*_list_moves(town, now.place, town.parcel), TAKE, *rest]


def fetch_and_wander(town: Town, now: Delivery, num_actions: int, rng: random.Random) -> list[str]:
    """So many actions of one who knows the way to the parcel and not to the door, but gives when there."""
    actions: list[str] = [] if now.has_parcel else [*_list_moves(town, now.place, town.parcel), TAKE]
    for action in actions[:num_actions]:
        now = apply_action(town, now, action)
    while len(actions) < num_actions and not now.is_delivered:
        moves = [name for name, place in town.moves[now.place].items() if place != now.place]
        actions.append(GIVE if now.place == town.door else rng.choice(moves))
        now = apply_action(town, now, actions[-1])
    return actions


def make_task(name: str, options: CourierOptions, seed: int) -> Task:
    """The town of a seed, as a task that can be solved in time."""
    num_rows, num_columns = options.num_rows, options.num_columns
    rng, moves = random.Random(seed), move_table(num_rows, num_columns)
    for _ in range(MAX_DRAWS):
        start, parcel, door = rng.sample(range(num_rows * num_columns), 3)
        town = Town(num_rows, num_columns, start, parcel, door, moves)
        if count_actions(town, Delivery(town.start)) <= options.max_actions:
            return Task(name, town.to_content(), seed=seed)
    raise ConfigError(
        f"no delivery in a town of {num_rows} x {num_columns} takes at most {options.max_actions} actions "
        f"(seed {seed}, {MAX_DRAWS} draws); raise env.options.max_turns"
    )


def _list_moves(town: Town, place: int, other: int) -> list[str]:
    (row, column), (to_row, to_column) = town.to_cell(place), town.to_cell(other)
    down, right = to_row - row, to_column - column
    return ["Down" if down > 0 else "Up"] * abs(down) + ["Right" if right > 0 else "Left"] * abs(right)
