"""LLaVA: every image is resized to one fixed size, with one placeholder per patch.

The built-in tiny vision-language models belong to this family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepwell.core.arrays import AnyArray
from stepwell.core.errors import ModelError
from stepwell.rendering.vision.format import ImageFormat, ImageTokens
from stepwell.rendering.vision.pixels import BICUBIC, Scaling, crop_centre, resize_image

PATCH_SIZES = {"clip_vision_model": 32, "siglip_vision_model": 16}
"""Supported vision towers, with the patch size if the configuration has none."""


class LlavaFormat(ImageFormat):
    """`settings` are those of the image processor, `config` that of the model."""

    family = "llava"

    def __init__(
        self, marker: str, marker_id: int, config: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        super().__init__(marker, marker_id)
        vision = config["vision_config"]
        self._settings = settings
        self._scaling = Scaling.from_settings(settings)
        self._height, self._width = _find_final_size(settings)
        tower = str(vision.get("model_type", "clip_vision_model"))
        if tower not in PATCH_SIZES:
            raise ModelError(
                f"config.json: LLaVA with the vision tower {tower!r} is not known here; "
                f"there are {', '.join(PATCH_SIZES)}"
            )
        size = int(vision.get("image_size", 224))
        if (self._height, self._width) != (size, size):
            raise ModelError(
                f"preprocessor_config.json makes images of {self._height} x {self._width}, but the vision "
                f"tower of config.json reads {size} x {size}; the files belong to different models"
            )
        patches = (size // int(vision.get("patch_size", PATCH_SIZES[tower]))) ** 2
        has_class = tower == "clip_vision_model"
        is_cut = config.get("vision_feature_select_strategy", "default") == "default"
        count = patches + int(has_class) - int(is_cut)
        ids = np.full(count, marker_id, dtype=np.int32)
        self._tokens = ImageTokens(ids, np.ones(count, dtype=bool))

    def build_tokens(self, height: int, width: int) -> ImageTokens:
        """The same run for every size, because images are resized."""
        return self._tokens

    def build_arrays(self, image: AnyArray) -> dict[str, AnyArray]:
        """{"pixel_values": [1, 3, H, W]}."""
        settings = self._settings
        if settings.get("do_pad"):
            image = _pad_to_square(image, self._scaling.mean)
        if settings.get("do_resize", True):
            image = resize_image(
                image, *_find_resize_size(image, settings), settings.get("resample", BICUBIC)
            )
        if settings.get("do_center_crop", True):
            image = crop_centre(image, self._height, self._width)
        return {"pixel_values": self._scaling.scale_pixels(image)[None]}


def _find_final_size(settings: Mapping[str, Any]) -> tuple[int, int]:
    crop, size = settings.get("crop_size"), settings.get("size")
    for value in (crop if settings.get("do_center_crop", True) else None, size):
        if isinstance(value, int):
            return value, value
        if isinstance(value, Mapping) and "height" in value:
            return int(value["height"]), int(value["width"])
    raise ModelError(
        "preprocessor_config.json: neither crop_size nor size gives the height and width of the images "
        "that the vision tower reads"
    )


def _find_resize_size(image: AnyArray, settings: Mapping[str, Any]) -> tuple[int, int]:
    size = settings.get("size", {"shortest_edge": 224})
    if isinstance(size, Mapping) and "height" in size:
        return int(size["height"]), int(size["width"])
    edge = int(size["shortest_edge"]) if isinstance(size, Mapping) else int(size)
    height, width = image.shape[:2]
    if height <= width:
        return edge, int(edge * width / height)
    return int(edge * height / width), edge


def _pad_to_square(image: AnyArray, mean: tuple[float, ...]) -> AnyArray:
    height, width = image.shape[:2]
    side = max(height, width)
    padded = np.empty((side, side, 3), dtype=np.uint8)
    padded[:] = [int(value * 255) for value in mean]
    top, left = (side - height) // 2, (side - width) // 2
    padded[top : top + height, left : left + width] = image
    return padded
