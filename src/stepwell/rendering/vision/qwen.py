"""Qwen2-VL and Qwen2.5-VL: images near their original size, positions with three axes (M-RoPE).

An image is resized so that both sides are whole numbers of merged patches and the number of pixels lies in a
range. Each merged patch is one placeholder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core.arrays import AnyArray
from stepwell.core.errors import InputError
from stepwell.rendering.vision.format import ImageFormat, ImageTokens, PlacedImage
from stepwell.rendering.vision.pixels import BICUBIC, Scaling, resize_image

MOST_ELONGATED = 200


class QwenFormat(ImageFormat):
    """`settings` are those of the image processor, `config` that of the model."""

    family = "qwen_vl"
    num_axes = 3

    def __init__(
        self, marker: str, marker_id: int, config: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        super().__init__(marker, marker_id)
        self._patch = int(settings.get("patch_size", 14))
        self._merge = int(settings.get("merge_size", 2))
        self._frames = int(settings.get("temporal_patch_size", 2))
        size = settings.get("size") or {}
        lowest = settings.get("min_pixels") or size.get("shortest_edge") or size.get("min_pixels")
        highest = settings.get("max_pixels") or size.get("longest_edge") or size.get("max_pixels")
        self._lowest = int(lowest or 56 * 56)
        self._highest = int(highest or 28 * 28 * 1280)
        self._is_resized = bool(settings.get("do_resize", True))
        self._resample = int(settings.get("resample", BICUBIC))
        self._scaling = Scaling.from_settings(settings)

    def build_tokens(self, height: int, width: int) -> ImageTokens:
        """One placeholder per merged patch of the resized image."""
        rows, columns = self._find_grid(height, width)
        count = rows * columns // self._merge**2
        ids = np.full(count, self.marker_id, dtype=np.int32)
        return ImageTokens(ids, np.ones(count, dtype=bool), (1, rows // self._merge, columns // self._merge))

    def build_arrays(self, image: AnyArray) -> dict[str, AnyArray]:
        """{"pixel_values": [patches, numbers of a patch], "image_grid_thw": [1, 3]}."""
        rows, columns = self._find_grid(*image.shape[:2])
        patch, merge = self._patch, self._merge
        numbers = self._scaling.scale_pixels(
            resize_image(image, rows * patch, columns * patch, self._resample)
        )
        blocks = numbers.reshape(3, rows // merge, merge, patch, columns // merge, merge, patch)
        blocks = blocks.transpose(1, 4, 2, 5, 0, 3, 6)  # keeps the patches of a merged patch together
        still = np.repeat(blocks[:, :, :, :, :, None], self._frames, axis=5)
        return {
            "pixel_values": still.reshape(rows * columns, -1),
            "image_grid_thw": np.array([[1, rows, columns]], dtype=np.int64),
        }

    def build_positions(self, length: int, placed: Sequence[PlacedImage]) -> npt.NDArray[np.int64]:
        """Positions in time, height and width, [3, length]."""
        parts: list[npt.NDArray[np.int64]] = []
        done, position = 0, 0
        for place in placed:
            span = place.span
            assert place.tokens.grid is not None, "the tokens are this format's own"
            parts.append(_place_text(span.start - done, position))
            position += span.start - done
            parts.append(np.indices(place.tokens.grid).reshape(3, -1) + position)
            done, position = span.start + span.length, position + max(place.tokens.grid)
        parts.append(_place_text(length - done, position))
        return np.concatenate(parts, axis=1)

    def _find_grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of patches."""
        unit = self._patch * self._merge
        if not self._is_resized:
            if height % unit or width % unit:
                raise InputError(
                    f"an image of {height} x {width} pixels is not whole patches of {unit}, and the "
                    "model's preprocessor_config.json says do_resize = false; resize the image"
                )
            return height // self._patch, width // self._patch
        if max(height, width) > MOST_ELONGATED * min(height, width):
            raise InputError(
                f"an image of {height} x {width} pixels is more than {MOST_ELONGATED} times as long as "
                "wide, which this model does not read; crop it"
            )
        tall, wide = round(height / unit) * unit, round(width / unit) * unit
        if tall * wide > self._highest:
            shrink = math.sqrt(height * width / self._highest)
            tall, wide = (max(unit, math.floor(side / shrink / unit) * unit) for side in (height, width))
        elif tall * wide < self._lowest:
            grow = math.sqrt(self._lowest / (height * width))
            tall, wide = (math.ceil(side * grow / unit) * unit for side in (height, width))
        return tall // self._patch, wide // self._patch


def _place_text(count: int, start: int) -> npt.NDArray[np.int64]:
    return np.broadcast_to(np.arange(start, start + count, dtype=np.int64), (3, count))
