"""The guide of the household for agents, and one example turn in each state form.

The example is played in a real small household, so its texts are true.
"""

from __future__ import annotations

from stepwell.core import ExampleTurn, StateForm
from stepwell.envs.household.catalogue import TINY, Catalogue
from stepwell.envs.household.goals import HouseholdGoal, write_instruction
from stepwell.envs.household.house import Command, House, make_first_state
from stepwell.envs.household.options import HouseholdOptions
from stepwell.envs.household.text import write_sentences, write_structured

COMMANDS = (
    "go to PLACE, open PLACE, take THING from PLACE, move THING to PLACE, "
    "clean, heat or cool THING with PLACE, use LAMP"
)
TERSE_COMMANDS = "go PLACE, open PLACE, take THING, move THING, clean, heat or cool THING, use LAMP"
IDLE_COMMANDS = ", close PLACE, examine PLACE or THING, look, inventory"


def write_guide(options: HouseholdOptions) -> str:
    """Goal and rules under these options."""
    has_idle = options.catalogue.has_idle_verbs or options.games is not None
    is_terse = options.catalogue.is_terse and options.games is None
    sink, oven, fridge = (options.catalogue.appliances[verb] for verb in ("clean", "heat", "cool"))
    lines = [
        "You are in a room and have a task. What lies in a place is seen from there, if it is not closed.",
        f"Commands: {TERSE_COMMANDS if is_terse else COMMANDS}{IDLE_COMMANDS if has_idle else ''}.",
        f"You hold one thing at most. Clean what you hold with a {sink}, heat it with a {oven}, "
        f"cool it with a {fridge}. To look at a thing in the light, hold it and use the lamp.",
        "Each turn, answer with exactly one of the commands that are listed. Solving the task gives 1 point.",
    ]
    return "\n".join(lines)


def make_examples(catalogue: Catalogue) -> dict[StateForm, ExampleTurn]:
    """The first command in a room with three places."""
    if catalogue is TINY:
        house = House(catalogue, "hut", ("desk", "box", "bed"), ("book", "key"))
    else:
        house = House(catalogue, "bedroom", ("desk 1", "drawer 1", "bed 1"), ("book 1", "keychain 1"))
    goal = HouseholdGoal("place", "book", "bed")
    before = make_first_state(house, [0, 1])
    command = Command("go", place=0)
    after = house.apply_command(before, command)
    instruction = write_instruction(goal, is_terse=catalogue.is_terse)
    reasoning = "Books lie on desks, so I look there first."
    forms = {StateForm.NATURAL_LANGUAGE: write_sentences, StateForm.STRUCTURED: write_structured}
    return {
        form: ExampleTurn(
            write(instruction, house, before),
            reasoning,
            write(instruction, house, after),
            house.write_command(command),
        )
        for form, write in forms.items()
    }
