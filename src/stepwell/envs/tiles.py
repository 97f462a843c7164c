"""Small images of grid environments: one painter per symbol, each tile drawn once.

A tile is painted four times as large and shrunk, which gives smooth edges. A board is then a lookup in the
stack of its environment's tiles. Painters use the unit square: (0, 0) top left, (1, 1) bottom right. Each
environment keeps its own `TileSet` (`frozenlake/tiles.py`, `sokoban/tiles.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import ConfigError

Image = npt.NDArray[np.uint8]
Colour = tuple[int, int, int]
OVERSAMPLE = 4
SKIN, COAT, DARK, RED = (244, 205, 170), (58, 130, 102), (44, 44, 52), (206, 62, 58)


class Brush:
    """Draws shapes in the unit square."""

    def __init__(self, draw: Any, side: int) -> None:
        self.draw, self.side = draw, side

    def draw_box(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """Draw a filled rectangle."""
        self.draw.rectangle(self._to_pixels(left, top, right, bottom), fill=fill)

    def draw_disc(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        """Draw a filled ellipse within the given box."""
        self.draw.ellipse(self._to_pixels(left, top, right, bottom), fill=fill)

    def draw_polygon(self, *points: float, fill: Colour) -> None:
        """Draw a filled polygon."""
        self.draw.polygon(self._to_pixels(*points), fill=fill)

    def draw_line(self, *points: float, fill: Colour, width: float) -> None:
        """Draw a line of the given width."""
        self.draw.line(self._to_pixels(*points), fill=fill, width=max(1, round(width * self.side)))

    def _to_pixels(self, *values: float) -> list[float]:
        return [value * (self.side - 1) for value in values]


def draw_ground(brush: Brush, edge: Colour, colour: Colour) -> None:
    """Paint one cell of ground with an edge around it."""
    brush.draw_box(0, 0, 1, 1, edge)
    brush.draw_box(0.02, 0.02, 0.98, 0.98, colour)


def draw_player(brush: Brush) -> None:
    """Paint the player."""
    brush.draw_polygon(0.5, 0.36, 0.76, 0.88, 0.24, 0.88, fill=COAT)
    brush.draw_disc(0.34, 0.12, 0.66, 0.44, SKIN)
    brush.draw_disc(0.41, 0.24, 0.46, 0.29, DARK)
    brush.draw_disc(0.54, 0.24, 0.59, 0.29, DARK)


TileSet = tuple[tuple[str, tuple[Callable[[Brush], None], ...]], ...]
"""Symbols, each with the painters that draw its tile, the lowest layer first."""


def draw_board(tile_set: TileSet, board: str, tile_size: int) -> Image:
    """Draw a symbolic board as a read-only image of `tile_size` pixels per cell."""
    tiles, lookup = _draw_tiles(tile_set, tile_size)
    num_columns = board.index("\n") if "\n" in board else len(board)
    codes = np.frombuffer(board.replace("\n", "").encode(), np.uint8).reshape(-1, num_columns)
    grid = tiles[lookup[codes]]  # [rows, columns, tile, tile, 3]
    rows, columns = codes.shape
    image = grid.transpose(0, 2, 1, 3, 4).reshape(rows * tile_size, columns * tile_size, 3)
    image.setflags(write=False)
    return image


def draw_text(text: str, line_height: int = 16) -> Image:
    """Draw plain text as an image, for environments that draw nothing of their own."""
    image, draw_module = _import_pillow()
    size = draw_module.Draw(image.new("RGB", (1, 1))).multiline_textbbox((0, 0), text or " ")
    canvas = image.new("RGB", (int(size[2]) + line_height, int(size[3]) + line_height), (255, 255, 255))
    draw_module.Draw(canvas).multiline_text((line_height // 2, line_height // 2), text, fill=DARK)
    return np.asarray(canvas, dtype=np.uint8)


@lru_cache(maxsize=16)
def _draw_tiles(tile_set: TileSet, size: int) -> tuple[Image, Image]:
    """Draw all tiles of a set into one stack; also return the place in it of every symbol."""
    image, draw_module = _import_pillow()
    lookup = np.zeros(128, np.uint8)
    tiles = []
    for place, (symbol, painters) in enumerate(tile_set):
        canvas = image.new("RGB", (size * OVERSAMPLE, size * OVERSAMPLE))
        brush = Brush(draw_module.Draw(canvas), size * OVERSAMPLE)
        for paint in painters:
            paint(brush)
        tiles.append(np.asarray(canvas.resize((size, size), image.Resampling.BOX), dtype=np.uint8))
        lookup[ord(symbol)] = place
    return np.stack(tiles), lookup


def _import_pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image as image
        from PIL import ImageDraw as draw_module
    except ImportError as error:
        raise ConfigError("images need the package pillow: pip install pillow") from error
    return image, draw_module
