"""The four tasks: what lies on the table, when a subgoal is reached, and how each is solved.

All lengths are whole millimetres: x towards the camera, y to its right, z up. The camera looks along
negative x. A task's subgoals are its stages in order; the last one is the whole task.

    place    red cube on the left target, green cube on the right one
    stack    red cube on green cube, purple cube on red cube
    drawer   apple grasped, apple in the drawer, drawer closed
    align    red and green cube on the line y = 0

Invariants
* `make_layout` is pure; nothing of a layout touches anything else, and every layout can be solved by
  `find_solution` in three turns of two primitives.
* Stages are judged by where things are, never by how they came there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.core import InputError
from stepwell.envs.primitive_skill.skills import Skill

Point = tuple[int, int, int]
Places = Mapping[str, Point]

CUBE, RADIUS = 40, 25  # side of a cube, radius of the apple
NEAR = 20  # how exactly something must lie where it belongs
HIGH = 150  # from here things are lowered
REACH = {"x": (-250, 200), "y": (-250, 250), "z": (0, 300)}
DRAWER_Y, DRAWER_OPEN, DRAWER_CLOSED = 0, -70, -190  # the drawer's middle when open and when closed
HANDLE = 62  # from the drawer's middle to its handle
DRAWER_HALF, DRAWER_Z = 45, 30
CUBES = ("red cube", "green cube", "purple cube")
NAMES: dict[str, tuple[str, ...]] = {
    "place": ("red cube", "green cube", "left target", "right target"),
    "stack": CUBES,
    "drawer": ("apple", "drawer", "handle"),
    "align": ("red cube", "green cube"),
}
INSTRUCTIONS = {
    "place": "Put the red cube on the left target and the green cube on the right target.",
    "stack": "Put the red cube on the green cube, then the purple cube on the red cube.",
    "drawer": "Put the apple into the open drawer, then push the drawer shut by its handle.",
    "align": "Bring the red cube and the green cube onto the line y = 0, both standing on the table.",
}
NUM_STAGES = {"place": 2, "stack": 2, "drawer": 3, "align": 2}


@dataclass(frozen=True, slots=True)
class TableLayout:
    """A task and where its things lie at first; `order` is the order in which positions are listed."""

    task: str
    places: dict[str, Point]
    order: tuple[str, ...]


def make_layout(task: str, rng: random.Random) -> TableLayout:
    """A table that can be solved."""
    names, places = NAMES[task], dict[str, Point]()
    if task == "drawer":
        places = {"drawer": (DRAWER_OPEN, DRAWER_Y, DRAWER_Z)}
        places["handle"] = (DRAWER_OPEN + HANDLE, DRAWER_Y, DRAWER_Z)
        side = rng.choice((-1, 1))
        places["apple"] = (rng.randint(-100, 120), side * rng.randint(110, 200), RADIUS)
    elif task == "place":
        x = rng.randint(60, 120)
        places = {"left target": (x, -rng.randint(60, 140), 0), "right target": (x, rng.randint(60, 140), 0)}
    for name in names:
        if name not in places:
            places[name] = _find_free_place(places, rng, off_line=task == "align")
    order = list(names)
    rng.shuffle(order)
    return TableLayout(task, {name: places[name] for name in names}, tuple(order))


def _find_free_place(places: Places, rng: random.Random, *, off_line: bool) -> Point:
    """Where a cube fits: away from everything else, and in a row of its own."""
    while True:
        x, y = rng.randint(-120, 120), rng.randint(-180, 180)
        apart = all(abs(x - a) >= 60 or abs(y - b) >= 60 for a, b, _ in places.values())
        own_row = not off_line or (abs(y) >= 40 and all(abs(x - a) >= 60 for a, _, _ in places.values()))
        if apart and own_row:
            return x, y, CUBE // 2


def read_layout(content: Mapping[str, Any]) -> TableLayout:
    """The layout of a task's content."""
    try:
        task, order = str(content["task"]), tuple(map(str, content["order"]))
        places = {str(name): _read_point(at) for name, at in content["places"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"a task of primitive_skill needs task, places and order: {error!r}") from error
    if task not in NAMES or set(places) != set(NAMES[task]) or sorted(order) != sorted(places):
        raise InputError(f"places and order of {task!r} must name {NAMES.get(task, tuple(NAMES))}")
    if any(not is_in_reach(at) for at in places.values()):
        raise InputError(f"places of {task!r} lie out of reach: {places}")
    return TableLayout(task, {name: places[name] for name in NAMES[task]}, order)


def _read_point(value: Any) -> Point:
    x, y, z = value
    if any(type(number) is not int for number in (x, y, z)):
        raise ValueError(f"{value!r} is not a point in whole millimetres")
    return x, y, z


def is_in_reach(at: Point) -> bool:
    """Whether the hand can go there."""
    return all(low <= number <= high for number, (low, high) in zip(at, REACH.values(), strict=True))


def list_stages(task: str, places: Places, held: str | None) -> list[bool]:
    """Which subgoals are reached."""
    if task == "place":
        done = [
            _is_lying(places, name, held) and _is_near(places[name], places[target])
            for name, target in _PAIRS
        ]
        return [any(done), all(done)]
    if task == "align":
        done = [_is_lying(places, name, held) and abs(places[name][1]) <= NEAR for name in NAMES["align"]]
        return [any(done), all(done)]
    if task == "stack":
        first = _is_on(places, "red cube", "green cube", held)
        return [first, first and _is_on(places, "purple cube", "red cube", held)]
    x, y, z = (a - b for a, b in zip(places["apple"], places["drawer"], strict=True))
    inside = held != "apple" and abs(x) <= DRAWER_HALF and abs(y) <= DRAWER_HALF and abs(z) <= DRAWER_Z
    return [held == "apple" or inside, inside, inside and places["drawer"][0] <= DRAWER_CLOSED + NEAR]


_PAIRS = (("red cube", "left target"), ("green cube", "right target"))


def _is_near(one: Point, other: Point) -> bool:
    return abs(one[0] - other[0]) <= NEAR and abs(one[1] - other[1]) <= NEAR


def _is_lying(places: Places, name: str, held: str | None) -> bool:
    return held != name and abs(places[name][2] - CUBE // 2) <= CUBE // 4


def _is_on(places: Places, upper: str, lower: str, held: str | None) -> bool:
    height = places[upper][2] - places[lower][2]
    is_free = held not in (upper, lower)
    return is_free and _is_near(places[upper], places[lower]) and abs(height - CUBE) <= CUBE // 4


def find_solution(task: str, places: Places, held: str | None) -> list[Skill]:
    """Primitives that lead from here to the end, where nothing stands in the way."""
    if task == "drawer":
        x, y, z = places["handle"]
        push = Skill("push", (x + 40, y, z, DRAWER_CLOSED + HANDLE + 15, y, z))
        reached = list_stages(task, places, held)
        if reached[2]:
            return []
        return [push] if reached[1] else [*_move_thing(places, "apple", places["drawer"], held), push]
    plan: list[Skill] = []
    for name, at in _list_aims(task, places):
        is_there = _is_near(places[name], at) and abs(places[name][2] - at[2]) <= CUBE // 4 and held != name
        if not is_there:
            plan += _move_thing(places, name, at, held)
    if held is not None and (not plan or plan[0].name != "place"):
        plan.insert(0, Skill("place", (*_find_free_spot(places), HIGH)))
    return plan


def _list_aims(task: str, places: Places) -> list[tuple[str, Point]]:
    """Where each thing should come to lie, in the order in which they should be moved."""
    if task == "place":
        return [(name, (*places[target][:2], CUBE // 2)) for name, target in _PAIRS]
    if task == "align":
        return [
            (name, (places[name][0], 0 if abs(places[name][1]) > NEAR // 2 else places[name][1], CUBE // 2))
            for name in NAMES["align"]
        ]
    x, y, z = places["green cube"]
    return [("red cube", (x, y, z + CUBE)), ("purple cube", (x, y, z + 2 * CUBE))]


def _move_thing(places: Places, name: str, at: Point, held: str | None) -> list[Skill]:
    place = Skill("place", (*at[:2], max(HIGH, at[2] + CUBE)))
    return [place] if held == name else [Skill("pick", places[name]), place]


def _find_free_spot(places: Places) -> tuple[int, int]:
    """A spot where nothing lies."""
    for x in (-120, -60, 0, 60, 120):
        for y in (-200, 200, -140, 140, -80, 80, 0):
            if all(abs(x - a) >= 60 or abs(y - b) >= 60 for a, b, _ in places.values()):
                return x, y
    return 120, 200
