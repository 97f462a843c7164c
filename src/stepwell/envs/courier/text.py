"""A delivery in words: the line an agent sees, the map, sentences and JSON.

The line says where parcel and door are, seen from the player: `parcel 2 down 3 right, door 1 up`,
`parcel in hand, door here`. With `door_words = "compass"` the door is `1 north` instead. The map has one
character per block and one line per row.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.envs.courier.town import Delivery, Town
from stepwell.envs.grid import Cell, put_symbol, write_sentence

MOVES, COMPASS = ("up", "down", "left", "right"), ("north", "south", "west", "east")
STREET, PARCEL, DOOR = "_", "B", "D"
PLAYER, PLAYER_AT_PARCEL, PLAYER_WITH_PARCEL, PLAYER_AT_DOOR, PARCEL_AT_DOOR = "P", "Q", "H", "S", "*"


def write_line(town: Town, now: Delivery, door_words: Sequence[str] = MOVES) -> str:
    """What the agent sees."""
    here = town.to_cell(now.place)
    if now.is_delivered or now.has_parcel:
        parcel = "delivered" if now.is_delivered else "in hand"
    else:
        parcel = _write_way(here, town.to_cell(town.parcel), MOVES)
    return f"parcel {parcel}, door {_write_way(here, town.to_cell(town.door), door_words)}"


def draw_map(town: Town, now: Delivery) -> str:
    """The town from above, one line per row."""
    rows = "\n".join([STREET * town.num_columns] * town.num_rows)
    rows = put_symbol(rows, town.num_columns, town.door, DOOR)
    is_taken = now.has_parcel or now.is_delivered
    if not is_taken:
        rows = put_symbol(rows, town.num_columns, town.parcel, PARCEL)
    return put_symbol(rows, town.num_columns, now.place, _choose_player(town, now, is_taken))


def write_sentences(town: Town, now: Delivery) -> str:
    """Where parcel and door lie, seen from the player."""
    player = town.to_cell(now.place)
    sentences = (
        write_sentence("the parcel", _find_parcel(town, now), "the player", player),
        write_sentence("the door", town.to_cell(town.door), "the player", player),
    )
    return " ".join(sentences)


def write_structured(town: Town, now: Delivery) -> str:
    """Positions as [row, column] in one JSON object."""
    cells = {
        "player": town.to_cell(now.place),
        "parcel": _find_parcel(town, now),
        "door": town.to_cell(town.door),
    }
    places = ", ".join(f'"{name}": [{row}, {column}]' for name, (row, column) in cells.items())
    return f'{{{places}, "size": [{town.num_rows}, {town.num_columns}]}}'


def _write_way(here: Cell, there: Cell, words: Sequence[str]) -> str:
    """How far a block is: `2 down 3 right`, or `here`."""
    down, right = there[0] - here[0], there[1] - here[1]
    said = [f"{abs(down)} {words[down > 0]}"] if down else []
    said += [f"{abs(right)} {words[2 + (right > 0)]}"] if right else []
    return " ".join(said) or "here"


def _find_parcel(town: Town, now: Delivery) -> Cell:
    return town.to_cell(town.door if now.is_delivered else now.place if now.has_parcel else town.parcel)


def _choose_player(town: Town, now: Delivery, is_taken: bool) -> str:
    if now.place == town.door:
        return PARCEL_AT_DOOR if is_taken else PLAYER_AT_DOOR
    if is_taken:
        return PLAYER_WITH_PARCEL
    return PLAYER_AT_PARCEL if now.place == town.parcel else PLAYER
