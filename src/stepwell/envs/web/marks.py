"""Screenshots for agents that see: the ids of elements as marks beside their boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np
from PIL import Image as PillowImage
from PIL import ImageDraw, ImageFont

from stepwell.envs.tiles import Image

COLOURS = ((200, 30, 30), (20, 90, 200), (10, 120, 50), (140, 50, 160), (180, 90, 0))
_FONT_SIZE = 13


def decode_image(data: bytes) -> Image:
    """The pixels of a PNG."""
    return np.asarray(PillowImage.open(BytesIO(data)).convert("RGB"))


def draw_marks(image: Image, boxes: Mapping[str, Sequence[float]]) -> Image:
    """A frame around every box on the screen, with its id in its upper left corner.

    A box is x, y, width, height in pixels; boxes outside of the image, or without an area, get no mark.
    """
    canvas = PillowImage.fromarray(image)
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(_FONT_SIZE)
    for place, (number, (x, y, width, height)) in enumerate(boxes.items()):
        if (
            width < 1
            or height < 1
            or x + width <= 0
            or y + height <= 0
            or x >= canvas.width
            or y >= canvas.height
        ):
            continue
        colour = COLOURS[place % len(COLOURS)]
        left, top = max(0.0, x), max(0.0, y)
        pen.rectangle(
            (left, top, min(x + width, canvas.width - 1), min(y + height, canvas.height - 1)), outline=colour
        )
        label = pen.textbbox((left + 1, top), number, font=font)
        pen.rectangle((label[0] - 1, label[1] - 1, label[2] + 1, label[3] + 1), fill=colour)
        pen.text((left + 1, top), number, fill=(255, 255, 255), font=font)
    return np.asarray(canvas)
