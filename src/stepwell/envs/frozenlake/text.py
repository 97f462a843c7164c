"""A lake in words: the symbolic board, sentences about where things lie, and JSON.

All forms are written by plain joining of strings: they are made on every step of every episode.
"""

from __future__ import annotations

from stepwell.envs.frozenlake.lake import HOLE, ICE, Lake
from stepwell.envs.grid import put_symbol, write_cells, write_sentence

GOAL, PLAYER, FALLEN, ARRIVED = "G", "P", "X", "*"


def draw_empty_board(lake: Lake) -> str:
    """The board without its player, one line per row."""
    cells = [HOLE if hole else ICE for hole in lake.holes]
    cells[lake.goal] = GOAL
    width = lake.num_columns
    return "\n".join(["".join(cells[at : at + width]) for at in range(0, len(cells), width)])


def draw_player(board: str, lake: Lake, place: int) -> str:
    """The board with its player, who may have fallen or arrived."""
    symbol = FALLEN if lake.holes[place] else ARRIVED if place == lake.goal else PLAYER
    return put_symbol(board, lake.num_columns, place, symbol)


def write_sentences(lake: Lake, place: int) -> str:
    """Where the goal and the holes lie, seen from the player."""
    player = lake.to_cell(place)
    sentences = [write_sentence("the goal", lake.to_cell(lake.goal), "the player", player)]
    holes = [cell for cell, is_hole in enumerate(lake.holes) if is_hole]
    for number, hole in enumerate(holes, start=1):
        sentences.append(write_sentence(f"hole {number}", lake.to_cell(hole), "the player", player))
    return " ".join(sentences)


def write_compass(lake: Lake, place: int) -> str:
    """How far the goal is, by rows and columns: `2 up, 1 left`."""
    rows, columns = (
        there - here for there, here in zip(lake.to_cell(lake.goal), lake.to_cell(place), strict=True)
    )
    said = [f"{abs(rows)} {'down' if rows > 0 else 'up'}"] if rows else []
    said += [f"{abs(columns)} {'right' if columns > 0 else 'left'}"] if columns else []
    return f"Goal: {', '.join(said) or 'here'}"


def write_structured(lake: Lake, place: int) -> str:
    """Positions as [row, column] in one JSON object."""
    player, goal = lake.to_cell(place), lake.to_cell(lake.goal)
    holes = write_cells(lake.to_cell(cell) for cell, is_hole in enumerate(lake.holes) if is_hole)
    return (
        f'{{"player": [{player[0]}, {player[1]}], "goal": [{goal[0]}, {goal[1]}], "holes": {holes}, '
        f'"size": [{lake.num_rows}, {lake.num_columns}]}}'
    )
