"""Images of boards: every symbol its own tile, placed where its cell is."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.envs.courier.tiles import TILES as COURIER
from stepwell.envs.frozenlake.tiles import TILES as LAKE
from stepwell.envs.sokoban.tiles import TILES as SOKOBAN
from stepwell.envs.tiles import TileSet, draw_board, draw_text


@pytest.mark.parametrize("tile_set", [LAKE, SOKOBAN, COURIER], ids=["frozenlake", "sokoban", "courier"])
@pytest.mark.parametrize("size", [8, 32])
def test_every_symbol_has_a_tile_of_its_own(tile_set: TileSet, size: int) -> None:
    tiles = {symbol: draw_board(tile_set, symbol, size).tobytes() for symbol, _ in tile_set}
    assert len(set(tiles.values())) == len(tiles)


def test_tiles_stand_where_their_cells_are() -> None:
    image = draw_board(SOKOBAN, "#_\nXP\nO*", 16)
    assert image.shape == (48, 32, 3) and image.dtype == np.uint8
    for row, symbols in enumerate(("#_", "XP", "O*")):
        for column, symbol in enumerate(symbols):
            tile = image[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            assert (tile == draw_board(SOKOBAN, symbol, 16)).all()


def test_a_hole_is_dark_and_ice_is_pale() -> None:
    hole, ice = (draw_board(LAKE, symbol, 32).mean() for symbol in "O_")
    assert hole < 160 < 220 < ice


def test_images_are_read_only_and_the_same_each_time() -> None:
    one, two = draw_board(LAKE, "P_G", 32), draw_board(LAKE, "P_G", 32)
    assert not one.flags.writeable and (one == two).all()


def test_text_becomes_dark_on_white_and_grows_with_its_lines() -> None:
    short, tall = draw_text("one line"), draw_text("one line\nand another\nand a third")
    assert tall.shape[0] > short.shape[0]
    assert short.min() < 100 and (short[0] == 255).all()
    assert draw_text("").shape[2] == 3
