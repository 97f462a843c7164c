"""The guide of navigation for agents, and one example turn in each state form.

The example is played in a real small room, so its texts are true under all settings.
"""

from __future__ import annotations

from stepwell.core import ActionSpace, ExampleTurn, StateForm
from stepwell.envs.navigation.options import NavigationOptions
from stepwell.envs.navigation.room import Furniture, NavigationRoom, Pose
from stepwell.envs.navigation.sight import LineOfSight
from stepwell.envs.navigation.text import write_forms
from stepwell.envs.navigation.things import BY_NAME


def write_guide(options: NavigationOptions) -> str:
    """Goal, actions and rewards under these options."""
    lines = ["You are a robot in a room. Walk to the thing that the instruction means."]
    if options.observation != "text":
        lines.append("A picture shows what you see; straight ahead is in its middle.")
    if options.observation != "image":
        lines.append("You are told what is in view, in which direction and how far away.")
    if options.instruction == "common":
        lines.append("The instruction does not name the thing: find out which one it describes.")
    lines += [
        f"moveahead, moveback, moveleft and moveright move {options.step_length:g} m without turning; "
        "what is in the way blocks them. rotateleft and rotateright turn by 90 degrees, "
        "lookup and lookdown tilt the view by 30 degrees.",
        f"You have arrived within {options.success_threshold:g} m of its middle"
        + (", turned to it and with it in view." if options.must_face else "."),
        "Arriving gives 10 points, every other action costs 0.1.",
    ]
    return "\n".join(lines)


def make_examples(actions: ActionSpace, options: NavigationOptions) -> dict[StateForm, ExampleTurn]:
    """One turn in a room with two things in both forms, with as many moves as a turn allows."""
    step = options.step_length
    things = (
        Furniture(BY_NAME["sofa"], 10 * step, 16 * step, 2, "red"),
        Furniture(BY_NAME["plant"], 4 * step, 14 * step, 0, "green"),
    )
    room = NavigationRoom.furnish(20 * step, 20 * step, things, (0, 0), step)
    sight, pose, target = LineOfSight(room, options.fov), Pose(9, 5, 0), things[0]
    way = ("moveahead", "moveahead", "moveright")[: actions.max_per_turn]
    forms = []
    for action in ("", *way):
        pose = room.move(pose, action) if action else pose
        forms.append(write_forms(sight, pose, target))
    reasoning = "The sofa is before me and nothing stands between, so I walk up to it."
    return {
        form: ExampleTurn(forms[0][form], reasoning, forms[-1][form], actions.separator.join(way))
        for form in forms[0]
    }
