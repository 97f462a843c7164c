"""The furniture: what each kind is made of, and what it is good for.

A kind stands on the floor and is made of parts (boxes, upright cylinders, spheres) around its middle;
front is +y before it is turned. `uses` complete "something ..." and fit one kind only, so that a room
with one of each kind leaves no doubt about what is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Colour = tuple[float, float, float]
Vector = tuple[float, float, float]

WHITE, BLACK, GREY, WOOD = (0.93, 0.93, 0.93), (0.08, 0.08, 0.09), (0.55, 0.56, 0.58), (0.5, 0.33, 0.18)
STEEL, GREEN, YELLOW = (0.72, 0.75, 0.78), (0.13, 0.5, 0.18), (1.0, 0.9, 0.45)
PALETTE: dict[str, Colour] = {
    "red": (0.75, 0.15, 0.13),
    "blue": (0.15, 0.3, 0.7),
    "green": (0.2, 0.55, 0.25),
    "yellow": (0.88, 0.74, 0.2),
    "purple": (0.48, 0.24, 0.6),
    "orange": (0.9, 0.47, 0.12),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One solid: its middle above the floor, half sizes along x, y and z, a colour (None: the thing's)."""

    middle: Vector
    half: Vector
    colour: Colour | None = None
    shape: Literal["box", "cylinder", "sphere"] = "box"


@dataclass(frozen=True, slots=True)
class FurnitureKind:
    """A kind of furniture: its footprint (half sizes along x and y), parts and uses."""

    name: str
    half: tuple[float, float]
    parts: tuple[Part, ...]
    uses: tuple[str, ...]


def _make_legs(x: float, y: float, height: float, colour: Colour = WOOD) -> tuple[Part, ...]:
    half = height / 2
    return tuple(Part((a, b, half), (0.03, 0.03, half), colour) for a in (-x, x) for b in (-y, y))


KINDS: tuple[FurnitureKind, ...] = (
    FurnitureKind(
        "sofa",
        (0.8, 0.4),
        (
            Part((0, 0.05, 0.22), (0.8, 0.35, 0.22)),
            Part((0, -0.32, 0.45), (0.8, 0.08, 0.4)),
            Part((-0.72, 0, 0.33), (0.08, 0.4, 0.33)),
            Part((0.72, 0, 0.33), (0.08, 0.4, 0.33)),
        ),
        ("soft where two or three people can sit side by side", "with cushions, made for sitting together"),
    ),
    FurnitureKind(
        "bed",
        (0.65, 0.95),
        (
            Part((0, 0, 0.2), (0.65, 0.95, 0.2), WOOD),
            Part((0, 0.15, 0.47), (0.62, 0.78, 0.07)),
            Part((0, -0.72, 0.47), (0.5, 0.18, 0.08), WHITE),
            Part((0, -0.91, 0.5), (0.65, 0.04, 0.5), WOOD),
        ),
        ("to lie down on for the night", "with a pillow and a blanket"),
    ),
    FurnitureKind(
        "dining table",
        (0.6, 0.4),
        (Part((0, 0, 0.72), (0.6, 0.4, 0.03), WOOD), *_make_legs(0.54, 0.34, 0.7)),
        ("where a family sits down to dinner", "to put plates and glasses on for a meal"),
    ),
    FurnitureKind(
        "chair",
        (0.22, 0.22),
        (
            Part((0, 0, 0.45), (0.22, 0.22, 0.03)),
            Part((0, -0.2, 0.72), (0.22, 0.025, 0.25)),
            *_make_legs(0.18, 0.18, 0.42),
        ),
        ("with a back and four legs for one person to sit on", "that a single guest would take a seat on"),
    ),
    FurnitureKind(
        "fridge",
        (0.35, 0.35),
        (
            Part((0, 0, 0.85), (0.35, 0.34, 0.85), STEEL),
            Part((0, 0.345, 1.15), (0.35, 0.005, 0.01), BLACK),
            Part((-0.28, 0.36, 1.0), (0.015, 0.02, 0.3), BLACK),
        ),
        ("that keeps milk and vegetables cold", "to cool a drink in"),
    ),
    FurnitureKind(
        "bookshelf",
        (0.45, 0.18),
        (
            Part((0, -0.02, 0.8), (0.45, 0.15, 0.8), WOOD),
            Part((-0.05, 0.14, 1.35), (0.34, 0.03, 0.14), PALETTE["red"]),
            Part((0.05, 0.14, 0.92), (0.34, 0.03, 0.14), PALETTE["blue"]),
            Part((-0.03, 0.14, 0.5), (0.36, 0.03, 0.14), PALETTE["yellow"]),
        ),
        ("that holds many novels", "where I can pick something to read"),
    ),
    FurnitureKind(
        "television",
        (0.55, 0.2),
        (
            Part((0, 0, 0.22), (0.55, 0.2, 0.22), WOOD),
            Part((0, 0, 0.48), (0.12, 0.08, 0.04), BLACK),
            Part((0, 0, 0.83), (0.52, 0.03, 0.31), BLACK),
            Part((0, 0.032, 0.83), (0.48, 0.005, 0.27), (0.25, 0.4, 0.55)),
        ),
        ("to watch films and the news on", "with a large screen for the evening show"),
    ),
    FurnitureKind(
        "floor lamp",
        (0.18, 0.18),
        (
            Part((0, 0, 0.02), (0.18, 0.18, 0.02), BLACK, "cylinder"),
            Part((0, 0, 0.65), (0.02, 0.02, 0.65), BLACK, "cylinder"),
            Part((0, 0, 1.4), (0.18, 0.18, 0.15), YELLOW, "cylinder"),
        ),
        ("that gives light when it gets dark", "tall that shines over an armchair at night"),
    ),
    FurnitureKind(
        "plant",
        (0.25, 0.25),
        (
            Part((0, 0, 0.17), (0.17, 0.17, 0.17), (0.7, 0.35, 0.2), "cylinder"),
            Part((0, 0, 0.42), (0.03, 0.03, 0.1), WOOD, "cylinder"),
            Part((0, 0, 0.72), (0.25, 0.25, 0.25), GREEN, "sphere"),
        ),
        ("alive that wants water and light", "green that grows in a pot"),
    ),
    FurnitureKind(
        "garbage can",
        (0.18, 0.18),
        (
            Part((0, 0, 0.25), (0.17, 0.17, 0.25), GREY, "cylinder"),
            Part((0, 0, 0.52), (0.18, 0.18, 0.02), BLACK, "cylinder"),
        ),
        ("to throw waste paper into", "that is emptied when it is full of rubbish"),
    ),
    FurnitureKind(
        "washing machine",
        (0.3, 0.3),
        (
            Part((0, 0, 0.42), (0.3, 0.29, 0.42), WHITE),
            Part((0, 0.05, 0.4), (0.19, 0.25, 0.19), BLACK, "sphere"),
            Part((0, 0.295, 0.78), (0.28, 0.005, 0.05), GREY),
        ),
        ("that cleans dirty clothes", "with a drum where laundry turns in water"),
    ),
    FurnitureKind(
        "toilet",
        (0.22, 0.32),
        (
            Part((0, 0.08, 0.2), (0.2, 0.2, 0.2), WHITE, "cylinder"),
            Part((0, 0.08, 0.42), (0.21, 0.21, 0.02), GREY, "cylinder"),
            Part((0, -0.22, 0.42), (0.22, 0.1, 0.42), WHITE),
        ),
        ("with a lid that is flushed after use", "found in every bathroom with a water tank at its back"),
    ),
    FurnitureKind(
        "bathtub",
        (0.75, 0.36),
        (
            Part((0, 0, 0.27), (0.75, 0.36, 0.27), WHITE),
            Part((0, 0, 0.545), (0.66, 0.28, 0.006), (0.45, 0.7, 0.9)),
            Part((-0.7, 0, 0.66), (0.03, 0.03, 0.12), STEEL, "cylinder"),
        ),
        ("to lie in warm water in", "filled with water, with a tap at one end"),
    ),
    FurnitureKind(
        "desk",
        (0.55, 0.3),
        (
            Part((0, 0, 0.7), (0.55, 0.3, 0.03)),
            *_make_legs(0.5, 0.25, 0.68, GREY),
            Part((0, 0.02, 0.74), (0.17, 0.12, 0.012), GREY),
            Part((0, -0.1, 0.86), (0.17, 0.012, 0.12), BLACK),
        ),
        ("to work at with a laptop", "where letters are written and a computer stands"),
    ),
    FurnitureKind(
        "stove",
        (0.3, 0.3),
        (
            Part((0, 0, 0.44), (0.3, 0.29, 0.44), STEEL),
            Part((0, 0, 0.885), (0.29, 0.28, 0.006), BLACK),
            Part((0, 0.295, 0.4), (0.22, 0.006, 0.18), BLACK),
            Part((-0.12, 0.1, 0.895), (0.09, 0.09, 0.006), PALETTE["red"], "cylinder"),
        ),
        ("to fry eggs and boil soup on", "hot, with burners and an oven below"),
    ),
    FurnitureKind(
        "ball",
        (0.2, 0.2),
        (Part((0, 0, 0.2), (0.2, 0.2, 0.2), None, "sphere"),),
        ("round that children kick", "that rolls when it is pushed"),
    ),
    FurnitureKind(
        "suitcase",
        (0.27, 0.14),
        (
            Part((0, 0, 0.34), (0.27, 0.13, 0.32)),
            Part((0, 0, 0.75), (0.1, 0.02, 0.02), BLACK),
            Part((-0.08, 0, 0.7), (0.012, 0.012, 0.06), BLACK),
            Part((0.08, 0, 0.7), (0.012, 0.012, 0.06), BLACK),
        ),
        ("to pack clothes into before a journey", "with a handle that is carried to the airport"),
    ),
    FurnitureKind(
        "grandfather clock",
        (0.22, 0.15),
        (
            Part((0, 0, 0.95), (0.22, 0.14, 0.95), WOOD),
            Part((0, 0.143, 1.6), (0.16, 0.006, 0.16), WHITE),
            Part((0, 0.15, 1.64), (0.012, 0.004, 0.09), BLACK),
            Part((0, 0.143, 0.9), (0.1, 0.006, 0.4), YELLOW),
        ),
        ("that tells the time and strikes the hour", "with two hands and a pendulum"),
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}
