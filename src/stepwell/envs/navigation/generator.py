"""Generates rooms and tasks by seed.

A room gets the configured number of different kinds of furniture, placed with a passage to its neighbours and
without touching a wall. Then start, heading and target are drawn until the length of the shortest path is
within the configured range.
"""

from __future__ import annotations

import random
from typing import Any

from stepwell.core import JSON, ConfigError, Task
from stepwell.envs.navigation.options import NavigationOptions
from stepwell.envs.navigation.room import AGENT_RADIUS, Furniture, NavigationRoom, Pose
from stepwell.envs.navigation.routes import find_shortest_route
from stepwell.envs.navigation.sight import LineOfSight
from stepwell.envs.navigation.things import KINDS, PALETTE, FurnitureKind

NUM_WALLS, NUM_FLOORS = 4, 3
PASSAGE = 2 * AGENT_RADIUS + 0.15
MAX_ROOMS, MAX_PLACES, MAX_STARTS = 60, 80, 20
BASE = (
    "Go to the {} and stop close to it.",
    "Walk to the {}, please, and stay near it.",
    "Find the {} and come close to it.",
)
COMMON = (
    "I am looking for something {}. Go there and stop close to it.",
    "There is something {} in this room. Walk up to it, please.",
    "Find me something {} and stay near it.",
)


def make_task(name: str, options: NavigationOptions, seed: int) -> Task:
    """The room of a seed, with a start, a target and an instruction."""
    rng = random.Random(seed)
    for _ in range(MAX_ROOMS):
        room = _draw_room(rng, options)
        if room is None:
            continue
        for _ in range(MAX_STARTS):
            start = Pose(rng.randrange(len(room.floor[0])), rng.randrange(len(room.floor)), rng.randrange(4))
            target = rng.choice(room.things)
            if room.is_free(start.column, start.row) and _is_fit_start(room, start, target, options):
                instruction = write_instruction(rng, target.kind, options.instruction)
                return Task(
                    name, _make_content(room, start, target), instruction, seed, (options.instruction,)
                )
    raise ConfigError(
        f"no room with env.options.num_things = {options.num_things} and sides of {options.min_side:g} to "
        f"{options.max_side:g} m has a target {options.min_actions} to {options.max_actions} actions away "
        f"(seed {seed}); allow larger rooms, fewer things or fewer min_actions"
    )


def write_instruction(rng: random.Random, kind: FurnitureKind, how: str) -> str:
    """An instruction that names a kind or describes its use."""
    return (
        rng.choice(BASE).format(kind.name)
        if how == "base"
        else rng.choice(COMMON).format(rng.choice(kind.uses))
    )


def _draw_room(rng: random.Random, options: NavigationOptions) -> NavigationRoom | None:
    halves = range(round(2 * options.min_side), round(2 * options.max_side) + 1)
    width, depth = rng.choice(halves) / 2, rng.choice(halves) / 2
    things: list[Furniture] = []
    for kind in rng.sample(KINDS, options.num_things):
        thing = _place_thing(rng, kind, width, depth, things)
        if thing is None:
            return None
        things.append(thing)
    looks = rng.randrange(NUM_WALLS), rng.randrange(NUM_FLOORS)
    return NavigationRoom.furnish(width, depth, tuple(things), looks, options.step_length)


def _place_thing(
    rng: random.Random, kind: FurnitureKind, width: float, depth: float, others: list[Furniture]
) -> Furniture | None:
    for _ in range(MAX_PLACES):
        x, y = round(rng.uniform(0, width), 2), round(rng.uniform(0, depth), 2)
        thing = Furniture(kind, x, y, rng.randrange(4), rng.choice(tuple(PALETTE)))
        half = thing.half
        inside = half[0] < x < width - half[0] and half[1] < y < depth - half[1]
        if inside and all(_leaves_passage(thing, other) for other in others):
            return thing
    return None


def _leaves_passage(one: Furniture, other: Furniture) -> bool:
    return (
        abs(one.x - other.x) - one.half[0] - other.half[0] >= PASSAGE
        or abs(one.y - other.y) - one.half[1] - other.half[1] >= PASSAGE
    )


def _is_fit_start(room: NavigationRoom, start: Pose, target: Furniture, options: NavigationOptions) -> bool:
    sight = LineOfSight(room, options.fov)
    if options.target_in_view and target.kind.name not in (thing.name for thing in sight.list_view(start)):
        return False
    way = find_shortest_route(
        room, start, make_arrival_test(sight, target, options), options.must_face, options.max_actions
    )
    return way is not None and len(way) >= options.min_actions


def make_arrival_test(sight: LineOfSight, target: Furniture, options: NavigationOptions) -> Any:
    """Build the test whether a pose has reached the target."""

    def has_arrived(pose: Pose) -> bool:
        near = sight.room.measure_distance(pose, target) <= options.success_threshold
        return near and (not options.must_face or sight.is_facing(pose, target))

    return has_arrived


def _make_content(room: NavigationRoom, start: Pose, target: Furniture) -> dict[str, JSON]:
    return {
        "size": [room.width, room.depth],
        "things": [
            {"kind": thing.kind.name, "x": thing.x, "y": thing.y, "turn": thing.turn, "colour": thing.colour}
            for thing in room.things
        ],
        "looks": list(room.looks),
        "start": list(start[:3]),
        "target": target.kind.name,
        "step": room.step,
    }
