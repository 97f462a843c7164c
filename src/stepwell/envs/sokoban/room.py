"""The room: walls and targets as tables, and what one move does.

Cells are numbered row by row. A set of cells (boxes, targets) is an integer with one bit per
cell, which makes states small, hashable and quick to compare. Boxes are all alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from stepwell.core import InputError
from stepwell.envs.grid import MAX_SIDE, NAMES, Cell, move_table, put_symbol

WALL, FLOOR, TARGET, BOX, PLAYER, STORED, PLAYER_ON_TARGET = "#", "_", "O", "X", "P", "*", "S"
SYMBOLS = "#_OXP*S"
INSIDE_WALL = dict.fromkeys(NAMES, -1)  # nobody stands there


class Situation(NamedTuple):
    """What changes while playing: the player's cell and the set of cells with a box."""

    player: int
    boxes: int


@dataclass(frozen=True, slots=True)
class SokobanRoom:
    """What never changes. `steps[cell][action]` is the next cell, -1 where a wall stands."""

    num_rows: int
    num_columns: int
    walls: int
    targets: int
    steps: tuple[dict[str, int], ...]

    @classmethod
    def from_sets(cls, num_rows: int, num_columns: int, walls: int, targets: int) -> SokobanRoom:
        """A room from its walls and targets; outside of it is wall."""
        steps = tuple(
            INSIDE_WALL
            if walls >> cell & 1
            else {action: -1 if to == cell or walls >> to & 1 else to for action, to in leads.items()}
            for cell, leads in enumerate(move_table(num_rows, num_columns))
        )
        return cls(num_rows, num_columns, walls, targets, steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> SokobanRoom:
        """Itself: copies of an environment share the room, whose tables would cost more than all the rest."""
        return self

    def to_cell(self, place: int) -> Cell:
        """Row and column of a numbered cell."""
        return divmod(place, self.num_columns)

    def move(self, player: int, boxes: int, action: str) -> Situation:
        """Walk or push; what is blocked stays as it is."""
        to = self.steps[player][action]
        if to < 0:
            return Situation(player, boxes)
        if not boxes >> to & 1:
            return Situation(to, boxes)
        beyond = self.steps[to][action]
        if beyond < 0 or boxes >> beyond & 1:
            return Situation(player, boxes)
        return Situation(to, boxes ^ (1 << to) ^ (1 << beyond))


def list_cells(cells: int) -> list[int]:
    """The numbers of the cells in a set, in reading order."""
    found = []
    while cells:
        lowest = cells & -cells
        found.append(lowest.bit_length() - 1)
        cells ^= lowest
    return found


def read_room(rows: Sequence[str]) -> tuple[SokobanRoom, Situation]:
    """A room and its first situation from rows of symbols."""
    return _read_room(tuple(rows))


@lru_cache(maxsize=1024)  # siblings play in the same room
def _read_room(rows: tuple[str, ...]) -> tuple[SokobanRoom, Situation]:
    num_columns = len(rows[0]) if rows else 0
    if max(len(rows), num_columns) > MAX_SIDE:
        raise InputError(f"a room has at most {MAX_SIDE} rows and columns, got {len(rows)} x {num_columns}")
    cells = "".join(rows)
    if not cells or any(len(row) != num_columns for row in rows) or set(cells) - set(SYMBOLS):
        raise InputError(f"room must be rows of equal length made of the symbols {SYMBOLS}, got {list(rows)}")

    def collect_cells(*symbols: str) -> int:
        return sum(1 << place for place, symbol in enumerate(cells) if symbol in symbols)

    players = list_cells(collect_cells(PLAYER, PLAYER_ON_TARGET))
    targets, boxes = collect_cells(TARGET, STORED, PLAYER_ON_TARGET), collect_cells(BOX, STORED)
    if len(players) != 1:
        raise InputError(f"room must hold one player, got {len(players)}")
    if not boxes or boxes.bit_count() != targets.bit_count():
        raise InputError(
            f"room must hold as many boxes as targets, got {boxes.bit_count()} and {targets.bit_count()}"
        )
    return SokobanRoom.from_sets(len(rows), num_columns, collect_cells(WALL), targets), Situation(
        players[0], boxes
    )


def draw_empty_room(room: SokobanRoom) -> str:
    """Walls, floor and targets as text, one line per row."""
    cells = [FLOOR] * (room.num_rows * room.num_columns)
    for symbol, places in ((WALL, room.walls), (TARGET, room.targets)):
        for place in list_cells(places):
            cells[place] = symbol
    width = room.num_columns
    return "\n".join("".join(cells[at : at + width]) for at in range(0, len(cells), width))


def draw_room(empty: str, room: SokobanRoom, situation: Situation) -> str:
    """The text of an empty room with its boxes and its player."""
    player, boxes = situation
    symbol = PLAYER_ON_TARGET if room.targets >> player & 1 else PLAYER
    text = put_symbol(empty, room.num_columns, player, symbol)
    for place in list_cells(boxes):
        text = put_symbol(text, room.num_columns, place, STORED if room.targets >> place & 1 else BOX)
    return text
