"""The room: walls, furniture, where one can stand, and how one moves.

Lengths are metres; x grows to the east, y to the north, (0, 0) is the south-west corner. The agent stands on
a grid of the step's length and faces one of four headings, so that all its poses can be numbered and a
move is looked up, not simulated. A place can be stood on if no wall or footprint is nearer than the
agent's radius; a move to any other place is blocked and leaves the agent where it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from stepwell.core import InputError
from stepwell.envs.navigation.things import BY_NAME, PALETTE, FurnitureKind

AGENT_RADIUS, EYE_HEIGHT = 0.2, 1.3
HEADINGS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # north, east, south, west
TURN, TILT, MIN_PITCH, MAX_PITCH = 90, 30, -60, 30
MOVES = {"moveahead": 0, "moveright": 1, "moveback": 2, "moveleft": 3}  # quarter turns from the heading
ROTATIONS = {"rotateright": 1, "rotateleft": -1}
TILTS = {"lookup": TILT, "lookdown": -TILT}
NAMES = ("moveahead", "moveback", "moveright", "moveleft", *ROTATIONS, *TILTS)


class Pose(NamedTuple):
    """Grid place, heading (quarter turns clockwise from north) and pitch (degrees, up is positive)."""

    column: int
    row: int
    heading: int
    pitch: int = 0


@dataclass(frozen=True, slots=True)
class Furniture:
    """A piece of furniture: its middle, how often it is turned by 90 degrees clockwise, its colour."""

    kind: FurnitureKind
    x: float
    y: float
    turn: int
    colour: str

    @property
    def half(self) -> tuple[float, float]:
        """Half sizes of the footprint as it stands."""
        along, across = self.kind.half
        return (along, across) if self.turn % 2 == 0 else (across, along)

    def measure_gap(self, x: float, y: float) -> float:
        """Distance of a point from the footprint; 0 inside."""
        half = self.half
        return math.hypot(max(abs(x - self.x) - half[0], 0.0), max(abs(y - self.y) - half[1], 0.0))


@dataclass(frozen=True, slots=True)
class NavigationRoom:
    """One room. `floor[row][column]` says where one can stand."""

    width: float
    depth: float
    things: tuple[Furniture, ...]
    looks: tuple[int, int]  # which pattern the walls and the floor have
    step: float
    floor: tuple[tuple[bool, ...], ...]

    @classmethod
    def furnish(
        cls, width: float, depth: float, things: tuple[Furniture, ...], looks: tuple[int, int], step: float
    ) -> NavigationRoom:
        """A room with its places worked out."""

        def is_free(column: int, row: int) -> bool:
            x, y = column * step, row * step
            wall = min(x, y, width - x, depth - y)
            return wall >= AGENT_RADIUS and all(thing.measure_gap(x, y) >= AGENT_RADIUS for thing in things)

        columns, rows = range(int(width / step) + 1), range(int(depth / step) + 1)
        floor = tuple(tuple(is_free(column, row) for column in columns) for row in rows)
        return cls(width, depth, things, looks, step, floor)

    def is_free(self, column: int, row: int) -> bool:
        """Whether one can stand there."""
        return 0 <= row < len(self.floor) and 0 <= column < len(self.floor[0]) and self.floor[row][column]

    def move(self, pose: Pose, action: str) -> Pose:
        """The pose after an action; the same one where it is blocked or the neck ends."""
        if action in MOVES:
            east, north = HEADINGS[(pose.heading + MOVES[action]) % 4]
            column, row = pose.column + east, pose.row + north
            return pose._replace(column=column, row=row) if self.is_free(column, row) else pose
        if action in ROTATIONS:
            return pose._replace(heading=(pose.heading + ROTATIONS[action]) % 4)
        return pose._replace(pitch=min(max(pose.pitch + TILTS[action], MIN_PITCH), MAX_PITCH))

    def measure_distance(self, pose: Pose, thing: Furniture) -> float:
        """Metres over the floor from the agent to the middle of a thing."""
        return math.hypot(thing.x - pose.column * self.step, thing.y - pose.row * self.step)


MAX_SIDE, MIN_STEP = 12.0, 0.1  # metres; a larger room or a finer grid only costs memory
_furnished = lru_cache(maxsize=256)(NavigationRoom.furnish)  # siblings of a group all start in the same room


def read_room(content: Mapping[str, Any]) -> tuple[NavigationRoom, Pose, Furniture]:
    """Room, first pose and target of a task's content."""
    try:
        width, depth = (float(side) for side in content["size"])
        things = tuple(
            Furniture(
                BY_NAME[thing["kind"]],
                float(thing["x"]),
                float(thing["y"]),
                int(thing["turn"]),
                thing["colour"],
            )
            for thing in content["things"]
        )
        walls, floor = (int(look) for look in content["looks"])
        column, row, heading = (int(number) for number in content["start"])
        target = next(thing for thing in things if thing.kind.name == content["target"])
        step = float(content["step"])
        if not (0 < width <= MAX_SIDE and 0 < depth <= MAX_SIDE and step >= MIN_STEP):
            raise ValueError(f"its sides are at most {MAX_SIDE} m and its steps at least {MIN_STEP} m")
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise InputError(
            f"a task of navigation holds no whole room: {type(error).__name__} {error}"
        ) from error
    if any(thing.colour not in PALETTE for thing in things) or heading not in range(4):
        raise InputError("a task of navigation has an unknown colour or heading")
    if len({thing.kind.name for thing in things}) != len(things):
        raise InputError(
            "a room of navigation has two things of one kind, so a name would not tell them apart"
        )
    room = _furnished(width, depth, things, (walls, floor), step)
    if not room.is_free(column, row):
        raise InputError(f"start {[column, row]} must be a free place of the room")
    return room, Pose(column, row, heading), target
