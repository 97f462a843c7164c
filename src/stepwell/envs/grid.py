"""What grid environments share: directions, tables of moves, and words for where things lie.

Cells are numbered row by row from the top left; (row, column) counts from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

DIRECTIONS: dict[str, tuple[int, int]] = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
NAMES = tuple(DIRECTIONS)
Cell = tuple[int, int]
MAX_SIDE = 64  # rows and columns of a board that a task may bring
JUDGE_CRITERIA = """\
- At least one relation between two things must be stated. A place on the board alone is none.
- "A is above B" and "B is below A" say the same; so do left and right.
- Every stated direction must be true. A wrong, contradictory or hedged one ("left or right") is NO.
- Naming every direction, repeating the rules, or asking for a verdict is NO."""
OPPOSITE = {"Up": "Down", "Down": "Up", "Left": "Right", "Right": "Left"}


@lru_cache(maxsize=64)
def move_table(num_rows: int, num_columns: int) -> tuple[dict[str, int], ...]:
    """For every cell, the cell each action leads to; at the edge one stays."""
    table = []
    for row in range(num_rows):
        for column in range(num_columns):
            moves = {}
            for name, (down, right) in DIRECTIONS.items():
                to_row = min(max(row + down, 0), num_rows - 1)
                to_column = min(max(column + right, 0), num_columns - 1)
                moves[name] = to_row * num_columns + to_column
            table.append(moves)
    return tuple(table)


def put_symbol(board: str, num_columns: int, place: int, symbol: str) -> str:
    """The text of a board (one line per row) with one cell changed."""
    at = place + place // num_columns  # one line break per row above
    return board[:at] + symbol + board[at + 1 :]


def describe_relation(cell: Cell, other: Cell) -> str:
    """Where `cell` lies as seen from `other`, as words that go before its name.

    >>> [describe_relation(place, (2, 1)) for place in ((0, 1), (3, 0), (2, 1))]
    ['directly above', 'below and left of', 'at the same place as']
    """
    rows, columns = cell[0] - other[0], cell[1] - other[1]
    vertical = "above" if rows < 0 else "below" if rows > 0 else ""
    horizontal = "left of" if columns < 0 else "right of" if columns > 0 else ""
    if vertical and horizontal:
        return f"{vertical} and {horizontal}"
    return f"directly {vertical or horizontal}" if vertical or horizontal else "at the same place as"


def write_sentence(thing: str, cell: Cell, other_thing: str, other: Cell) -> str:
    """`The goal is directly above the player.`"""
    return f"{thing[0].upper()}{thing[1:]} is {describe_relation(cell, other)} {other_thing}."


def write_cells(cells: Iterable[Cell]) -> str:
    """Cells as JSON text: `[[0, 1], [2, 3]]`."""
    return "[" + ", ".join(f"[{row}, {column}]" for row, column in cells) + "]"


@lru_cache(maxsize=64)
def make_neighbour_table(num_rows: int, num_columns: int) -> tuple[tuple[int, ...], ...]:
    """For every cell, the cells beside it."""
    table = move_table(num_rows, num_columns)
    return tuple(tuple({*moves.values()} - {cell}) for cell, moves in enumerate(table))


def find_distance(
    neighbours: Sequence[tuple[int, ...]], blocked: Sequence[bool], start: int, goal: int
) -> int:
    """Fewest moves from `start` to `goal` around blocked cells; -1 where there is no way.

    The same number as `distances(...)[start]`, found without looking at the rest of the board.
    """
    is_new = [not wall for wall in blocked]
    is_new[goal] = False
    frontier, count = [goal], 0
    while frontier:
        if start in frontier:
            return count
        reached = []
        for cell in frontier:
            for other in neighbours[cell]:
                if is_new[other]:
                    is_new[other] = False
                    reached.append(other)
        frontier = reached
        count += 1
    return -1


def find_distances(moves: Sequence[dict[str, int]], blocked: Sequence[bool], goal: int) -> list[int]:
    """Fewest moves from every cell to `goal` around blocked cells; -1 where there is no way.

    Moves are walked backwards, which on a grid is the same as forwards.
    """
    found = [-1] * len(moves)
    found[goal] = 0
    frontier = [goal]
    while frontier:
        reached = []
        for cell in frontier:
            for other in moves[cell].values():
                if found[other] < 0 and not blocked[other]:
                    found[other] = found[cell] + 1
                    reached.append(other)
        frontier = reached
    return found
