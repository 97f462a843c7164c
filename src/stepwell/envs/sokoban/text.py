"""A room in words: sentences about where things lie, and JSON."""

from __future__ import annotations

from stepwell.envs.grid import write_cells, write_sentence
from stepwell.envs.sokoban.room import Situation, SokobanRoom, list_cells


def write_sentences(room: SokobanRoom, situation: Situation) -> str:
    """Where boxes and targets lie, seen from the player, and targets seen from boxes.

    Boxes and targets are numbered in reading order; one alone needs no number.
    """
    player = room.to_cell(situation.player)
    boxes = _name_cells("box", room, situation.boxes)
    targets = _name_cells("target", room, room.targets)
    sentences = [write_sentence(name, cell, "the player", player) for name, cell in boxes + targets]
    sentences += [
        write_sentence(name, cell, box, box_cell) for box, box_cell in boxes for name, cell in targets
    ]
    return " ".join(sentences)


def write_structured(room: SokobanRoom, situation: Situation) -> str:
    """Positions as [row, column] in one JSON object."""
    row, column = room.to_cell(situation.player)
    boxes = write_cells(room.to_cell(place) for place in list_cells(situation.boxes))
    targets = write_cells(room.to_cell(place) for place in list_cells(room.targets))
    return (
        f'{{"player": [{row}, {column}], "boxes": {boxes}, "targets": {targets}, '
        f'"size": [{room.num_rows}, {room.num_columns}]}}'
    )


def _name_cells(thing: str, room: SokobanRoom, places: int) -> list[tuple[str, tuple[int, int]]]:
    cells = list_cells(places)
    if len(cells) == 1:
        return [(f"the {thing}", room.to_cell(cells[0]))]
    return [(f"{thing} {number}", room.to_cell(cell)) for number, cell in enumerate(cells, start=1)]
