"""A room in words: sentences about where things lie, and JSON."""

from __future__ import annotations

from stepwell.envs.grid import json_cells, sentence
from stepwell.envs.sokoban.room import Room, Situation, cells_of


def in_words(room: Room, situation: Situation) -> str:
    """Where boxes and targets lie, seen from the player, and targets seen from boxes.

    Boxes and targets are numbered in reading order; one alone needs no number.
    """
    player = room.cell(situation.player)
    boxes = _named("box", room, situation.boxes)
    targets = _named("target", room, room.targets)
    told = [sentence(name, cell, "the player", player) for name, cell in boxes + targets]
    told += [sentence(name, cell, box, box_cell) for box, box_cell in boxes for name, cell in targets]
    return " ".join(told)


def structured(room: Room, situation: Situation) -> str:
    """Positions as [row, column] in one JSON object."""
    row, column = room.cell(situation.player)
    boxes = json_cells(room.cell(place) for place in cells_of(situation.boxes))
    targets = json_cells(room.cell(place) for place in cells_of(room.targets))
    return (
        f'{{"player": [{row}, {column}], "boxes": {boxes}, "targets": {targets}, '
        f'"size": [{room.num_rows}, {room.num_columns}]}}'
    )


def _named(thing: str, room: Room, places: int) -> list[tuple[str, tuple[int, int]]]:
    cells = cells_of(places)
    if len(cells) == 1:
        return [(f"the {thing}", room.cell(cells[0]))]
    return [(f"{thing} {number}", room.cell(cell)) for number, cell in enumerate(cells, start=1)]
