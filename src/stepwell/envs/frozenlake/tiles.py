"""The tiles of FrozenLake: ice, holes, the flag at the goal, the player."""

from __future__ import annotations

from stepwell.envs.tiles import RED, SKIN, Brush, TileSet, draw_ground, draw_player

ICE, ICE_EDGE, WATER, DEEP, POLE = (222, 238, 247), (196, 219, 233), (58, 94, 128), (27, 50, 77), (92, 72, 60)


def _draw_ice(brush: Brush) -> None:
    draw_ground(brush, ICE_EDGE, ICE)
    brush.draw_line(0.15, 0.3, 0.3, 0.15, fill=(255, 255, 255), width=0.04)
    brush.draw_line(0.62, 0.85, 0.85, 0.62, fill=(255, 255, 255), width=0.04)


def _draw_hole(brush: Brush) -> None:
    _draw_ice(brush)
    brush.draw_disc(0.1, 0.1, 0.9, 0.9, WATER)
    brush.draw_disc(0.18, 0.2, 0.82, 0.86, DEEP)


def _draw_flag(brush: Brush) -> None:
    brush.draw_line(0.35, 0.15, 0.35, 0.88, fill=POLE, width=0.06)
    brush.draw_polygon(0.37, 0.16, 0.82, 0.31, 0.37, 0.47, fill=RED)


def _draw_drowning_player(brush: Brush) -> None:
    brush.draw_disc(0.34, 0.3, 0.66, 0.62, SKIN)
    brush.draw_box(0.2, 0.54, 0.8, 0.68, DEEP)
    brush.draw_line(0.24, 0.56, 0.76, 0.56, fill=WATER, width=0.05)


TILES: TileSet = (
    ("_", (_draw_ice,)),
    ("O", (_draw_hole,)),
    ("G", (_draw_ice, _draw_flag)),
    ("P", (_draw_ice, draw_player)),
    ("X", (_draw_hole, _draw_drowning_player)),
    ("*", (_draw_ice, _draw_flag, draw_player)),
)
