"""Pictures of boards: every symbol its own tile, placed where its cell is."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.envs.tiles import WORLDS, draw, text_image


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("size", [8, 32])
def test_every_symbol_has_a_tile_of_its_own(world: str, size: int) -> None:
    tiles = {symbol: draw(world, symbol, size).tobytes() for symbol in WORLDS[world]}
    assert len(set(tiles.values())) == len(tiles)


def test_tiles_stand_where_their_cells_are() -> None:
    picture = draw("sokoban", "#_\nXP\nO*", 16)
    assert picture.shape == (48, 32, 3) and picture.dtype == np.uint8
    for row, symbols in enumerate(("#_", "XP", "O*")):
        for column, symbol in enumerate(symbols):
            tile = picture[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            assert (tile == draw("sokoban", symbol, 16)).all()


def test_a_hole_is_dark_and_ice_is_pale() -> None:
    hole, ice = (draw("frozenlake", symbol, 32).mean() for symbol in "O_")
    assert hole < 160 < 220 < ice


def test_pictures_are_read_only_and_the_same_each_time() -> None:
    one, two = draw("frozenlake", "P_G", 32), draw("frozenlake", "P_G", 32)
    assert not one.flags.writeable and (one == two).all()


def test_text_becomes_dark_on_white_and_grows_with_its_lines() -> None:
    short, tall = text_image("one line"), text_image("one line\nand another\nand a third")
    assert tall.shape[0] > short.shape[0]
    assert short.min() < 100 and (short[0] == 255).all()
    assert text_image("").shape[2] == 3
