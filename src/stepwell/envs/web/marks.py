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
Frame = tuple[float, float, float, float]
"""Left, top, right and bottom, in pixels."""


def decode_image(data: bytes) -> Image:
    """The pixels of a PNG."""
    return np.asarray(PillowImage.open(BytesIO(data)).convert("RGB"))


def draw_marks(image: Image, boxes: Mapping[str, Sequence[float]]) -> Image:
    """A frame around every box on the screen, with its id beside it.

    A box is x, y, width, height in pixels; boxes outside of the image, or without an area, get no mark. An id
    stands above its box or left of it, so that the text in the box can be read; in its upper left corner only
    where other boxes or the edges leave no room.
    """
    canvas = PillowImage.fromarray(image)
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(_FONT_SIZE)
    frames = {
        number: (
            max(0.0, x),
            max(0.0, y),
            min(x + width, canvas.width - 1),
            min(y + height, canvas.height - 1),
        )
        for number, (x, y, width, height) in boxes.items()
        if width >= 1 and height >= 1
    }
    frames = {
        number: frame for number, frame in frames.items() if frame[0] < frame[2] and frame[1] < frame[3]
    }
    taken = list(frames.values())
    for place, number in enumerate(boxes):
        if number not in frames:
            continue
        colour = COLOURS[place % len(COLOURS)]
        pen.rectangle(frames[number], outline=colour)
        left, top, right, bottom = pen.textbbox((0, 0), number, font=font)
        label = _place_label(frames[number], right - left + 2, bottom - top + 2, taken)
        taken.append(label)
        pen.rectangle(label, fill=colour)
        pen.text((label[0] + 1 - left, label[1] + 1 - top), number, fill=(255, 255, 255), font=font)
    return np.asarray(canvas)


def _place_label(frame: Frame, width: float, height: float, taken: Sequence[Frame]) -> Frame:
    """Where a label covers nothing that is taken: above a frame, left of it, else in its corner."""
    left, top = frame[:2]
    for x, y in ((left, top - height - 1), (left - width - 1, top)):
        label = (x, y, x + width, y + height)
        if x >= 0 and y >= 0 and not any(_is_over(label, other) for other in taken):
            return label
    return left, top, left + width, top + height


def _is_over(one: Frame, other: Frame) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]
