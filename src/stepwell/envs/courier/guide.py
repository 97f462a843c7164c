"""The guide of the courier for agents, and one example turn in each state form.

The example is played in a real small town, so its texts are true under all settings.
"""

from __future__ import annotations

from stepwell.core import ActionSpace, ExampleTurn, StateForm
from stepwell.envs.courier.text import draw_map, write_sentences, write_structured
from stepwell.envs.courier.town import Delivery, Town, apply_action, plan_delivery

GUIDE = """\
You are a courier in a town of square blocks. Fetch the parcel and give it at the door.
You are told how far parcel and door are, such as `parcel 2 down 3 right, door 1 up`.
Up, Down, Left and Right walk one block; at the edge of the town you stay. Take picks up the parcel where it \
lies, Give hands it over at the door; elsewhere they do nothing.
The delivery gives 1 point; nothing else does.
Drawn as a map, the town is one character per block: _ street, B parcel, D door, P player, Q player at the \
parcel, H player with the parcel in hand, S player at the door, * player at the door with the parcel."""


def make_examples(actions: ActionSpace) -> dict[StateForm, ExampleTurn]:
    """One turn in a town of 3 x 3 in every form, with as many actions as a turn allows."""
    town = Town.from_content({"size": [3, 3], "start": [2, 0], "parcel": [1, 0], "door": [1, 2]})
    before = after = Delivery(town.start)
    way = plan_delivery(town, before)[: min(actions.max_per_turn, 3)]
    for action in way:
        after = apply_action(town, after, action)
    writers = {
        StateForm.NATURAL_LANGUAGE: write_sentences,
        StateForm.SYMBOLIC: draw_map,
        StateForm.STRUCTURED: write_structured,
    }
    reasoning = "The parcel is one block up. I take it there and go right to the door."
    return {
        form: ExampleTurn(write(town, before), reasoning, write(town, after), actions.separator.join(way))
        for form, write in writers.items()
    }
