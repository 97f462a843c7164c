"""What can be seen from a pose: things in view, their direction and their distance.

A thing is in view if one of the sample points of its parts (the middle and points near the corners) lies in
the image and no part of another thing stands between it and the eye. Points and boxes of a room are
worked out once; a look is a few array operations.

Directions are words for the bearing over the floor: ahead (within 20 degrees), left, right, behind
(more than 135 degrees away).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.envs.navigation.room import EYE_HEIGHT, TURN, Furniture, NavigationRoom, Pose

Floats = npt.NDArray[np.float64]
AHEAD, BEHIND = 20.0, 135.0
INSET = 0.8  # sample points stand this far from a part's middle towards its corners


@dataclass(frozen=True, slots=True)
class VisibleThing:
    """A thing as seen from a pose."""

    name: str
    direction: str
    distance: float


class LineOfSight:
    """Eyes in one room."""

    def __init__(self, room: NavigationRoom, fov: float) -> None:
        self.room, self._reach = room, math.tan(math.radians(fov / 2))
        boxes = [(number, *box) for number, thing in enumerate(room.things) for box in list_boxes(thing)]
        self._owner = np.array([number for number, _, _ in boxes])
        middles, halves = (np.array([box[i] for box in boxes]) for i in (1, 2))
        self._low, self._high = middles - halves, middles + halves
        corners = np.array([(0, 0, 0), *itertools.product((-INSET, INSET), repeat=3)])
        self._points = (middles[:, None] + corners * halves[:, None]).reshape(-1, 3)
        self._point_owner = np.repeat(self._owner, len(corners))

    def list_visible_things(self, pose: Pose) -> list[Furniture]:
        """The things that can be seen, nearest first."""
        eye = np.array([pose.column * self.room.step, pose.row * self.room.step, EYE_HEIGHT])
        rays = self._points - eye
        shown = self._find_in_image(rays, pose)
        rays, owner = rays[shown], self._point_owner[shown]
        is_clear = ~(self._find_blocked(eye, rays) & (self._owner[None] != owner[:, None])).any(axis=1)
        found = [self.room.things[number] for number in set(owner[is_clear].tolist())]
        return sorted(found, key=lambda thing: (self.room.measure_distance(pose, thing), thing.kind.name))

    def list_view(self, pose: Pose) -> list[VisibleThing]:
        """What is in view, in words and metres."""
        return [self.locate_thing(pose, thing) for thing in self.list_visible_things(pose)]

    def locate_thing(self, pose: Pose, thing: Furniture) -> VisibleThing:
        """Where a thing is, in view or not."""
        return VisibleThing(
            thing.kind.name,
            name_direction(find_bearing(self.room, pose, thing)),
            self.room.measure_distance(pose, thing),
        )

    def is_facing(self, pose: Pose, thing: Furniture) -> bool:
        """Whether a thing is in view and no other heading is nearer to it."""
        return abs(find_bearing(self.room, pose, thing)) <= TURN / 2 and thing in self.list_visible_things(
            pose
        )

    def _find_in_image(self, rays: Floats, pose: Pose) -> npt.NDArray[np.bool_]:
        """Whether points lie in the square image; rays are from the eye."""
        heading, pitch = math.radians(pose.heading * TURN), math.radians(pose.pitch)
        ahead = rays[:, 0] * math.sin(heading) + rays[:, 1] * math.cos(heading)
        right = rays[:, 0] * math.cos(heading) - rays[:, 1] * math.sin(heading)
        deep = ahead * math.cos(pitch) + rays[:, 2] * math.sin(pitch)
        up = rays[:, 2] * math.cos(pitch) - ahead * math.sin(pitch)
        reach = deep * self._reach
        found: npt.NDArray[np.bool_] = (deep > 0.05) & (abs(right) < reach) & (abs(up) < reach)
        return found

    def _find_blocked(self, eye: Floats, rays: Floats) -> npt.NDArray[np.bool_]:
        """[ray, box]: whether the way from the eye to the ray's end passes through a box."""
        safe = np.where(np.abs(rays) < 1e-9, 1e-9, rays)[:, None]
        one, other = (self._low - eye) / safe, (self._high - eye) / safe
        enter, leave = np.minimum(one, other).max(axis=2), np.maximum(one, other).min(axis=2)
        hit: npt.NDArray[np.bool_] = (enter < leave) & (enter > 0) & (enter < 1)
        return hit


def list_boxes(thing: Furniture) -> list[tuple[Any, Any]]:
    """Middle and half sizes of each part, where the thing stands."""
    found = []
    for part in thing.kind.parts:
        x, y, z = part.middle
        along, across, up = part.half
        if part.shape == "sphere":
            along = across = up = min(part.half) * 0.8  # a ball leaves its box's corners free
        for _ in range(thing.turn % 4):
            x, y, along, across = y, -x, across, along
        found.append(((thing.x + x, thing.y + y, z), (along, across, up)))
    return found


def find_bearing(room: NavigationRoom, pose: Pose, thing: Furniture) -> float:
    """Degrees from the heading to the middle of a thing, from -180 to 180, right is positive."""
    east, north = thing.x - pose.column * room.step, thing.y - pose.row * room.step
    return compute_bearing(east, north, pose.heading * TURN)


def compute_bearing(east: float, north: float, heading: float) -> float:
    """Degrees from a heading (clockwise from north) to a point that far to the east and north."""
    return (math.degrees(math.atan2(east, north)) - heading + 180) % 360 - 180


def name_direction(angle: float) -> str:
    """The word for a bearing: ahead, left, right or behind."""
    if abs(angle) <= AHEAD:
        return "ahead"
    return "behind" if abs(angle) > BEHIND else "right" if angle > 0 else "left"
