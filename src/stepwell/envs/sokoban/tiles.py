"""The tiles of Sokoban: brick walls, floor, wooden boxes, red rings as targets, the player."""

from __future__ import annotations

from stepwell.envs.tiles import RED, Brush, Colour, TileSet, draw_ground, draw_player

FLOOR, FLOOR_EDGE, BRICK, MORTAR = (238, 232, 220), (222, 214, 198), (146, 96, 78), (104, 66, 54)
WOOD, WOOD_EDGE, DONE = (202, 150, 84), (140, 96, 46), (112, 172, 92)


def _draw_floor(brush: Brush) -> None:
    draw_ground(brush, FLOOR_EDGE, FLOOR)


def _draw_wall(brush: Brush) -> None:
    brush.draw_box(0, 0, 1, 1, MORTAR)
    for row, shift in enumerate((0.0, 0.25, 0.0, 0.25)):
        for column in (-1, 0, 1):
            left = column * 0.5 + shift
            brush.draw_box(left + 0.02, row * 0.25 + 0.02, left + 0.48, row * 0.25 + 0.23, BRICK)


def _draw_target(brush: Brush) -> None:
    _draw_floor(brush)
    brush.draw_disc(0.24, 0.24, 0.76, 0.76, RED)
    brush.draw_disc(0.34, 0.34, 0.66, 0.66, FLOOR)
    brush.draw_disc(0.43, 0.43, 0.57, 0.57, RED)


def _draw_crate(brush: Brush, fill: Colour = WOOD) -> None:
    brush.draw_box(0.12, 0.12, 0.88, 0.88, WOOD_EDGE)
    brush.draw_box(0.19, 0.19, 0.81, 0.81, fill)
    brush.draw_line(0.19, 0.19, 0.81, 0.81, fill=WOOD_EDGE, width=0.06)
    brush.draw_line(0.19, 0.81, 0.81, 0.19, fill=WOOD_EDGE, width=0.06)


def _draw_stored_crate(brush: Brush) -> None:
    _draw_crate(brush, DONE)


TILES: TileSet = (
    ("#", (_draw_wall,)),
    ("_", (_draw_floor,)),
    ("O", (_draw_target,)),
    ("X", (_draw_floor, _draw_crate)),
    ("P", (_draw_floor, draw_player)),
    ("*", (_draw_target, _draw_stored_crate)),
    ("S", (_draw_target, draw_player)),
)
