"""The state in words: which shapes the target has and where, and how the last drawing did.

Where a shape lies is read off its own image: the box of its ink, in percent of the canvas, counted
from the upper left corner. Descriptions are kept by code, as they are asked for at every step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stepwell.envs.svg.markup import read_markup
from stepwell.envs.svg.rasteriser import draw_svg

INK_SIDE = 100
Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class PlacedShape:
    """A shape, the box of its ink (left, top, right, bottom in percent) and a word for where that is."""

    kind: str
    box: Box
    place: str


@dataclass(frozen=True, slots=True)
class DrawingOutcome:
    """What became of the last code: its shapes and likeness, or why it was refused."""

    num_shapes: int = 0
    similarity: float = 0.0
    refusal: str = ""


@lru_cache(maxsize=2048)
def locate_shapes(svg: str) -> tuple[PlacedShape, ...]:
    """The shapes of checked code that leave ink, in drawing order."""
    found = []
    for shape in read_markup(svg, max_chars=len(svg)).shapes:
        ink = (draw_svg(shape.svg, INK_SIDE) < 250).any(axis=2)
        if ink.any():
            rows, columns = np.nonzero(ink)
            box = (int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1)
            found.append(PlacedShape(shape.kind, box, name_place(box)))
    return tuple(found)


def name_place(box: Box) -> str:
    """Where the middle of a box lies on the canvas.

    >>> name_place((0, 0, 20, 20)), name_place((10, 10, 90, 90)), name_place((40, 70, 60, 90))
    ('upper left', 'middle', 'bottom')
    """
    across, down = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    side = "left" if across < 40 else "right" if across > 60 else ""
    height = "upper" if down < 40 else "lower" if down > 60 else ""
    if side and height:
        return f"{height} {side}"
    return side or {"upper": "top", "lower": "bottom", "": "middle"}[height]


def write_sentences(icon: str, svg: str, outcome: DrawingOutcome | None) -> str:
    """Sentences about the target and the last drawing."""
    shapes = locate_shapes(svg)
    sentences = [f"The target is the icon {icon} with {len(shapes)} shape{'s' * (len(shapes) != 1)}."]
    for number, shape in enumerate(shapes, start=1):
        left, top, right, bottom = shape.box
        sentences.append(
            f"Shape {number} is a {shape.kind} at the {shape.place}, "
            f"from {left} to {right} percent across and from {top} to {bottom} percent down."
        )
    return " ".join([*sentences, _describe_outcome(outcome)])


def _describe_outcome(outcome: DrawingOutcome | None) -> str:
    if outcome is None:
        return "Nothing is drawn yet."
    if outcome.refusal:
        return "The last code was refused."
    count = outcome.num_shapes
    return f"The drawing has {count} shape{'s' * (count != 1)} and a similarity of {outcome.similarity:.2f}."


def write_structured(icon: str, svg: str, outcome: DrawingOutcome | None) -> str:
    """The same as one JSON object."""
    shapes = [
        {"kind": shape.kind, "place": shape.place, "box": list(shape.box)} for shape in locate_shapes(svg)
    ]
    drawing = None
    if outcome is not None and not outcome.refusal:
        drawing = {"num_shapes": outcome.num_shapes, "similarity": round(outcome.similarity, 2)}
    refused = outcome is not None and bool(outcome.refusal)
    return json.dumps({"icon": icon, "shapes": shapes, "drawing": drawing, "refused": refused})
