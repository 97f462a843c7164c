"""The tiles of Courier: paving, the parcel, the door, the player without and with the parcel."""

from __future__ import annotations

from stepwell.envs.tiles import DARK, RED, Brush, TileSet, draw_ground, draw_player

PAVING, PAVING_EDGE, WALL, WOOD = (232, 229, 222), (208, 203, 192), (178, 118, 92), (92, 62, 44)
CARD, CARD_EDGE, KNOB = (214, 170, 106), (150, 108, 56), (236, 204, 92)


def _draw_paving(brush: Brush) -> None:
    draw_ground(brush, PAVING_EDGE, PAVING)


def _draw_door(brush: Brush) -> None:
    brush.draw_box(0.02, 0.02, 0.98, 0.98, WALL)
    brush.draw_box(0.24, 0.14, 0.76, 0.98, DARK)
    brush.draw_box(0.29, 0.19, 0.71, 0.98, WOOD)
    brush.draw_disc(0.58, 0.54, 0.66, 0.62, KNOB)


def _draw_parcel(brush: Brush) -> None:
    _draw_box(brush, 0.2, 0.3, 0.8, 0.82)


def _draw_parcel_below(brush: Brush) -> None:
    _draw_box(brush, 0.56, 0.62, 0.96, 0.96)


def _draw_parcel_in_hand(brush: Brush) -> None:
    _draw_box(brush, 0.3, 0.52, 0.7, 0.84)


def _draw_box(brush: Brush, left: float, top: float, right: float, bottom: float) -> None:
    brush.draw_box(left, top, right, bottom, CARD_EDGE)
    brush.draw_box(left + 0.03, top + 0.03, right - 0.03, bottom - 0.03, CARD)
    middle = (left + right) / 2
    brush.draw_line(middle, top, middle, bottom, fill=RED, width=0.06)


TILES: TileSet = (
    ("_", (_draw_paving,)),
    ("B", (_draw_paving, _draw_parcel)),
    ("D", (_draw_paving, _draw_door)),
    ("P", (_draw_paving, draw_player)),
    ("Q", (_draw_paving, draw_player, _draw_parcel_below)),
    ("H", (_draw_paving, draw_player, _draw_parcel_in_hand)),
    ("S", (_draw_paving, _draw_door, draw_player)),
    ("*", (_draw_paving, _draw_door, draw_player, _draw_parcel_in_hand)),
)
