"""A room in words: what is in view and where the target is, as sentences and as JSON.

The JSON has the keys that the published state of this environment has; the pose is added to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from stepwell.core import JSON, StateForm
from stepwell.envs.navigation.room import Furniture, Pose
from stepwell.envs.navigation.sight import LineOfSight, VisibleThing

PLACES = {
    "ahead": "ahead of the robot",
    "left": "to the left of the robot",
    "right": "to the right of the robot",
    "behind": "behind the robot",
}
COMPASS = ("north", "east", "south", "west")


def write_forms(sight: LineOfSight, pose: Pose, target: Furniture) -> dict[StateForm, str]:
    """The state in both forms."""
    aim, things = sight.locate_thing(pose, target), sight.list_view(pose)
    return {
        StateForm.NATURAL_LANGUAGE: write_sentences(aim, things),
        StateForm.STRUCTURED: write_structured(aim, things, pose, sight.room.step),
    }


def write_location(thing: VisibleThing) -> str:
    """`The sofa is to the left of the robot, 2.59 m away.`"""
    return f"The {thing.name} is {PLACES[thing.direction]}, {thing.distance:.2f} m away."


def write_view(things: Sequence[VisibleThing]) -> str:
    """The things in view, nearest first."""
    return (
        " ".join(write_location(thing) for thing in things)
        if things
        else "Nothing but walls and floor is in view."
    )


def write_sentences(target: VisibleThing, things: Sequence[VisibleThing]) -> str:
    """Where the target is, then what else is in view."""
    is_seen = any(thing.name == target.name for thing in things)
    others = [thing for thing in things if thing.name != target.name]
    sentences = [
        f"The target is the {target.name}.",
        write_location(target),
        f"It is {'' if is_seen else 'not '}in view.",
    ]
    return " ".join([*sentences, *(write_location(thing) for thing in others)])


def write_structured(target: VisibleThing, things: Sequence[VisibleThing], pose: Pose, step: float) -> str:
    """One JSON object."""
    player: dict[str, JSON] = {
        "position": [round(pose.column * step, 2), round(pose.row * step, 2)],
        "heading": COMPASS[pose.heading],
        "pitch": pose.pitch,
    }
    return write_structured_view(target, things, player)


def write_structured_view(
    target: VisibleThing, things: Sequence[VisibleThing], player: dict[str, JSON]
) -> str:
    """The target, what is in view, and the agent's pose."""
    visible = [
        {
            "type": thing.name,
            "direction_to_player": thing.direction,
            "distance_to_player": round(thing.distance, 2),
        }
        for thing in things
    ]
    return json.dumps(
        {
            "target_obj_type": target.name,
            "target_distance_to_player": round(target.distance, 2),
            "target_direction_to_player": target.direction,
            "visible_objects": visible,
            "player": player,
        }
    )
