"""The guide of the table for agents, and one example turn in each state form."""

from __future__ import annotations

from stepwell.core import ExampleTurn, StateForm
from stepwell.envs.primitive_skill.options import PrimitiveSkillOptions
from stepwell.envs.primitive_skill.skills import Skill, write_skills
from stepwell.envs.primitive_skill.table import REACH, Point
from stepwell.envs.primitive_skill.text import write_forms


def write_guide(options: PrimitiveSkillOptions) -> str:
    """Goal, primitives, axes and rewards under these options."""
    limits = ", ".join(f"{axis} from {low} to {high}" for axis, (low, high) in REACH.items())
    shown = {
        "text": "You are told where everything is.",
        "image": "You see a picture of the table and a list of positions, but not which position belongs to "
        "which thing: that you must find out from the picture.",
    }
    many = options.max_actions_per_turn
    lines = [
        "You control a robot's hand above a table. Do what the instruction says.",
        "pick(x,y,z) grasps the thing whose middle is at that point. place(x,y,z) lowers what the hand holds "
        "over that point and lets go; a z that is too high does no harm. push(x1,y1,z1,x2,y2,z2) moves the "
        "closed fingers from one point to another and pushes what is in the way.",
        f"All numbers are whole millimetres within reach: {limits}. Cubes have sides of 40.",
        "You look along the negative x-axis: larger x is nearer to you, negative y is to your left, positive "
        "y to your right, and z is up.",
        shown["text" if options.observation == "text" else "image"],
        f"A turn has up to {many} action{'s' if many > 1 else ''}, with | between them.",
        "The whole task gives 10 points. Until then every action costs 0.1, and a subgoal that is reached "
        "for the first time gives 2, the next one 4.",
    ]
    return "\n".join(lines)


def make_examples(options: PrimitiveSkillOptions) -> dict[StateForm, ExampleTurn]:
    """The first turn of a stack; the structured form comes first, because it suits this environment best."""
    before: dict[str, Point] = {"red cube": (62, -55, 20), "green cube": (75, 33, 20)}
    pick, place = Skill("pick", (62, -55, 20)), Skill("place", (75, 33, 150))
    is_whole = options.max_actions_per_turn > 1
    after = {**before, "red cube": (75, 33, 60) if is_whole else (62, -55, 220)}
    answer = write_skills([pick, place] if is_whole else [pick])
    now, then = write_forms(before, None), write_forms(after, None if is_whole else "red cube")
    reasoning = "The red cube belongs on the green one: I pick it up and place it over the green cube."
    order = (StateForm.STRUCTURED, StateForm.NATURAL_LANGUAGE)
    return {form: ExampleTurn(now[form], reasoning, then[form], answer) for form in order}
