"""Small clean pictures of grid worlds, drawn here: one painter per symbol, each tile drawn once.

A tile is painted four times as large and shrunk, which gives smooth edges; a board is then a
lookup in the stack of its world's tiles. Painters use the unit square: (0, 0) top left, (1, 1)
bottom right.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from stepwell.core import ConfigError
from stepwell.envs.base import Image

OVERSAMPLE = 4
Colour = tuple[int, int, int]
ICE, ICE_EDGE, WATER, DEEP = (222, 238, 247), (196, 219, 233), (58, 94, 128), (27, 50, 77)
FLOOR, FLOOR_EDGE, BRICK, MORTAR = (238, 232, 220), (222, 214, 198), (146, 96, 78), (104, 66, 54)
RED, POLE, SKIN, COAT, DARK = (206, 62, 58), (92, 72, 60), (244, 205, 170), (58, 130, 102), (44, 44, 52)
WOOD, WOOD_EDGE, DONE = (202, 150, 84), (140, 96, 46), (112, 172, 92)


class Brush:
    """Shapes in the unit square."""

    def __init__(self, draw: Any, side: int) -> None:
        self.draw, self.side = draw, side

    def box(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """A filled rectangle."""
        self.draw.rectangle(self._scaled(left, top, right, bottom), fill=fill)

    def disc(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """A filled ellipse within the given box."""
        self.draw.ellipse(self._scaled(left, top, right, bottom), fill=fill)

    def shape(self, *points: float, fill: Colour) -> None:
        """A filled polygon."""
        self.draw.polygon(self._scaled(*points), fill=fill)

    def line(self, *points: float, fill: Colour, width: float) -> None:
        """A line of the given width."""
        self.draw.line(self._scaled(*points), fill=fill, width=max(1, round(width * self.side)))

    def _scaled(self, *values: float) -> list[float]:
        return [value * (self.side - 1) for value in values]


def _ground(brush: Brush, edge: Colour, colour: Colour) -> None:
    brush.box(0, 0, 1, 1, edge)
    brush.box(0.02, 0.02, 0.98, 0.98, colour)


def _ice(brush: Brush) -> None:
    _ground(brush, ICE_EDGE, ICE)
    brush.line(0.15, 0.3, 0.3, 0.15, fill=(255, 255, 255), width=0.04)
    brush.line(0.62, 0.85, 0.85, 0.62, fill=(255, 255, 255), width=0.04)


def _hole(brush: Brush) -> None:
    _ice(brush)
    brush.disc(0.1, 0.1, 0.9, 0.9, WATER)
    brush.disc(0.18, 0.2, 0.82, 0.86, DEEP)


def _flag(brush: Brush) -> None:
    brush.line(0.35, 0.15, 0.35, 0.88, fill=POLE, width=0.06)
    brush.shape(0.37, 0.16, 0.82, 0.31, 0.37, 0.47, fill=RED)


def _player(brush: Brush) -> None:
    brush.shape(0.5, 0.36, 0.76, 0.88, 0.24, 0.88, fill=COAT)
    brush.disc(0.34, 0.12, 0.66, 0.44, SKIN)
    brush.disc(0.41, 0.24, 0.46, 0.29, DARK)
    brush.disc(0.54, 0.24, 0.59, 0.29, DARK)


def _drowning(brush: Brush) -> None:
    brush.disc(0.34, 0.3, 0.66, 0.62, SKIN)
    brush.box(0.2, 0.54, 0.8, 0.68, DEEP)
    brush.line(0.24, 0.56, 0.76, 0.56, fill=WATER, width=0.05)


def _floor(brush: Brush) -> None:
    _ground(brush, FLOOR_EDGE, FLOOR)


def _wall(brush: Brush) -> None:
    brush.box(0, 0, 1, 1, MORTAR)
    for row, shift in enumerate((0.0, 0.25, 0.0, 0.25)):
        for column in (-1, 0, 1):
            left = column * 0.5 + shift
            brush.box(left + 0.02, row * 0.25 + 0.02, left + 0.48, row * 0.25 + 0.23, BRICK)


def _target(brush: Brush) -> None:
    _floor(brush)
    brush.disc(0.24, 0.24, 0.76, 0.76, RED)
    brush.disc(0.34, 0.34, 0.66, 0.66, FLOOR)
    brush.disc(0.43, 0.43, 0.57, 0.57, RED)


def _crate(brush: Brush, fill: Colour = WOOD) -> None:
    brush.box(0.12, 0.12, 0.88, 0.88, WOOD_EDGE)
    brush.box(0.19, 0.19, 0.81, 0.81, fill)
    brush.line(0.19, 0.19, 0.81, 0.81, fill=WOOD_EDGE, width=0.06)
    brush.line(0.19, 0.81, 0.81, 0.19, fill=WOOD_EDGE, width=0.06)


def _stored(brush: Brush) -> None:
    _crate(brush, DONE)


Painters = dict[str, tuple[Callable[[Brush], None], ...]]
WORLDS: dict[str, Painters] = {
    "frozenlake": {
        "_": (_ice,),
        "O": (_hole,),
        "G": (_ice, _flag),
        "P": (_ice, _player),
        "X": (_hole, _drowning),
        "*": (_ice, _flag, _player),
    },
    "sokoban": {
        "#": (_wall,),
        "_": (_floor,),
        "O": (_target,),
        "X": (_floor, _crate),
        "P": (_floor, _player),
        "*": (_target, _stored),
        "S": (_target, _player),
    },
}


def draw(world: str, board: str, tile_size: int) -> Image:
    """A symbolic board as a read-only picture of `tile_size` pixels per cell."""
    tiles, lookup = _tiles(world, tile_size)
    num_columns = board.index("\n") if "\n" in board else len(board)
    codes = np.frombuffer(board.replace("\n", "").encode(), np.uint8).reshape(-1, num_columns)
    grid = tiles[lookup[codes]]  # [rows, columns, tile, tile, 3]
    rows, columns = codes.shape
    picture = grid.transpose(0, 2, 1, 3, 4).reshape(rows * tile_size, columns * tile_size, 3)
    picture.setflags(write=False)
    return picture


def text_image(text: str, line_height: int = 16) -> Image:
    """Plain text as a picture, for worlds that draw nothing of their own."""
    image, draw_module = _pillow()
    size = draw_module.Draw(image.new("RGB", (1, 1))).multiline_textbbox((0, 0), text or " ")
    picture = image.new("RGB", (int(size[2]) + line_height, int(size[3]) + line_height), (255, 255, 255))
    draw_module.Draw(picture).multiline_text((line_height // 2, line_height // 2), text, fill=DARK)
    return np.asarray(picture, dtype=np.uint8)


@lru_cache(maxsize=16)
def _tiles(world: str, size: int) -> tuple[Image, Image]:
    """The tiles of a world in one stack, and the place in it of every symbol."""
    image, draw_module = _pillow()
    lookup = np.zeros(128, np.uint8)
    tiles = []
    for place, (symbol, painters) in enumerate(WORLDS[world].items()):
        canvas = image.new("RGB", (size * OVERSAMPLE, size * OVERSAMPLE))
        brush = Brush(draw_module.Draw(canvas), size * OVERSAMPLE)
        for paint in painters:
            paint(brush)
        tiles.append(np.asarray(canvas.resize((size, size), image.Resampling.BOX), dtype=np.uint8))
        lookup[ord(symbol)] = place
    return np.stack(tiles), lookup


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image as image
        from PIL import ImageDraw as draw_module
    except ImportError as error:
        raise ConfigError("pictures need the package pillow: pip install pillow") from error
    return image, draw_module
