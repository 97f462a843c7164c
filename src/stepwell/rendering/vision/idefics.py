"""Idefics3 and SmolVLM: an image as tiles, each labelled with its row and column, then the whole image.

A large image is cut into square tiles of the encoder's size, followed by the whole image resized to one more
tile. A small image, or any image without splitting, is that last tile alone. Every tile has the same number
of placeholders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from stepwell.core.arrays import AnyArray
from stepwell.rendering.vision.format import ImageFormat, ImageTokens
from stepwell.rendering.vision.pixels import HALF, LANCZOS, Scaling, resize_image

LONGEST_SIDE = 4096
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"


class IdeficsFormat(ImageFormat):
    """`settings` are the image processor's, `config` is the model's, `encode` the tokenizer's."""

    family = "idefics3"

    def __init__(
        self,
        marker: str,
        marker_id: int,
        config: Mapping[str, Any],
        settings: Mapping[str, Any],
        encode: Callable[[str], list[int]],
    ) -> None:
        super().__init__(marker, marker_id)
        vision = config["vision_config"]
        tile = settings.get("max_image_size") or {"longest_edge": vision.get("image_size", 364)}
        self._tile = int(tile["longest_edge"])
        self._edge = int((settings.get("size") or {"longest_edge": 4 * self._tile})["longest_edge"])
        self._is_resized = bool(settings.get("do_resize", True))
        self._is_split = bool(settings.get("do_image_splitting", True))
        self._resample = int(settings.get("resample", LANCZOS))
        self._scaling = Scaling.from_settings(settings, HALF, HALF)
        side = self._tile // int(vision.get("patch_size", 32))
        self._per_tile = side**2 // int(config.get("scale_factor", 2)) ** 2
        self._encode = encode
        self._run: Callable[[int, int], ImageTokens] = lru_cache(maxsize=256)(self._build_run)

    def build_tokens(self, height: int, width: int) -> ImageTokens:
        """Tags and placeholders of every tile."""
        tall, wide = self._round_to_tiles(*self._fit_size(height, width))
        rows, columns = tall // self._tile, wide // self._tile
        return self._run(rows, columns) if rows * columns > 1 else self._run(0, 0)

    def build_arrays(self, image: AnyArray) -> dict[str, AnyArray]:
        """{"pixel_values": [tiles, 3, S, S]}."""
        tile = self._tile
        image = resize_image(image, *self._fit_size(*image.shape[:2]), self._resample)
        image = resize_image(image, *self._round_to_tiles(*image.shape[:2]), self._resample)
        tiles = []
        if max(image.shape[:2]) > tile:
            for top in range(0, image.shape[0], tile):
                for left in range(0, image.shape[1], tile):
                    tiles.append(image[top : top + tile, left : left + tile])
        tiles.append(resize_image(image, tile, tile, self._resample))
        return {"pixel_values": np.stack([self._scaling.scale_pixels(part) for part in tiles])}

    def _fit_size(self, height: int, width: int) -> tuple[int, int]:
        """The size whose longer side is as configured; the other side is made even."""
        if not self._is_resized:
            return height, width
        ratio = width / height
        if width >= height:
            wide = self._edge
            tall = int(wide / ratio)
            tall += tall % 2
        else:
            tall = self._edge
            wide = int(tall * ratio)
            wide += wide % 2
        tall, wide = max(tall, 1), max(wide, 1)
        ratio = wide / tall
        if wide >= tall and wide > LONGEST_SIDE:
            tall, wide = int(LONGEST_SIDE / ratio), LONGEST_SIDE
        elif tall > wide and tall > LONGEST_SIDE:
            tall, wide = LONGEST_SIDE, int(LONGEST_SIDE * ratio)
        return max(tall, 1), max(wide, 1)

    def _round_to_tiles(self, height: int, width: int) -> tuple[int, int]:
        """Round the size to whole tiles."""
        if not self._is_split:
            return self._tile, self._tile
        ratio = width / height
        if width >= height:
            wide = self._round_side(width)
            return self._round_side(int(wide / ratio)), wide
        tall = self._round_side(height)
        return tall, self._round_side(int(tall * ratio))

    def _round_side(self, side: int) -> int:
        return math.ceil(side / self._tile) * self._tile

    def _build_run(self, rows: int, columns: int) -> ImageTokens:
        features = self.marker * self._per_tile
        text = ""
        for row in range(1, rows + 1):
            text += "".join(f"{AROUND}<row_{row}_col_{column}>{features}" for column in range(1, columns + 1))
            text += "\n"
        text += ("\n" if rows else "") + f"{AROUND}{WHOLE}{features}{AROUND}"
        ids = np.array(self._encode(text), dtype=np.int32)
        return ImageTokens(ids, ids == self.marker_id)
