"""Image preprocessing for vision encoders: resize with Pillow, rescale, normalise.

The operations of `preprocessor_config.json` are applied in the same order as by image processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core.arrays import AnyArray

FloatImage = npt.NDArray[np.float32]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
BICUBIC, LANCZOS = 3, 1


def resize_image(image: AnyArray, height: int, width: int, resample: int) -> AnyArray:
    """Resize an image. `resample` is the number of a Pillow filter."""
    if image.shape[:2] == (height, width):
        return image
    from PIL import Image

    source = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(source.resize((width, height), Image.Resampling(resample)), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Scaling:
    """Maps bytes to numbers around zero."""

    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, Any],
        mean: tuple[float, ...] = CLIP_MEAN,
        std: tuple[float, ...] = CLIP_STD,
    ) -> Scaling:
        """Read the image processor's settings; `mean` and `std` are the defaults."""
        is_rescaled, is_normalised = settings.get("do_rescale", True), settings.get("do_normalize", True)
        return cls(
            float(settings.get("rescale_factor", 1 / 255)) if is_rescaled else 1.0,
            tuple(settings.get("image_mean") or mean) if is_normalised else (0.0, 0.0, 0.0),
            tuple(settings.get("image_std") or std) if is_normalised else (1.0, 1.0, 1.0),
        )

    def scale_pixels(self, image: AnyArray) -> FloatImage:
        """Convert [H, W, 3] bytes to [3, H, W] float32."""
        numbers = image.transpose(2, 0, 1).astype(np.float32) * np.float32(self.factor)
        mean, std = (np.array(v, dtype=np.float32)[:, None, None] for v in (self.mean, self.std))
        result: FloatImage = (numbers - mean) / std
        return np.ascontiguousarray(result)


def crop_centre(image: AnyArray, height: int, width: int) -> AnyArray:
    """Crop the centre of an image; pad with black if it is smaller than requested."""
    have_height, have_width = image.shape[:2]
    if have_height < height or have_width < width:
        padded = np.zeros((max(height, have_height), max(width, have_width), 3), dtype=np.uint8)
        top = -(-(padded.shape[0] - have_height) // 2)
        left = -(-(padded.shape[1] - have_width) // 2)
        padded[top : top + have_height, left : left + have_width] = image
        image = padded
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]
