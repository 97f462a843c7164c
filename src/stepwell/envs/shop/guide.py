"""The guide of the shop for agents, and one example turn in each state form.

The example is stored here, not computed, so that environments can be listed without building a catalogue. A
test plays it and compares.
"""

from __future__ import annotations

from stepwell.core import ExampleTurn, StateForm
from stepwell.envs.shop.options import ShopOptions

EXAMPLE_TASK = "Buy soft cup, color: red, max $12."
_TASK = f"The task is: {EXAMPLE_TASK}"
BEFORE = {
    StateForm.NATURAL_LANGUAGE: f"{_TASK} The search page is open.",
    StateForm.STRUCTURED: f'{{"task": "{EXAMPLE_TASK}", "page": "search"}}',
}
AFTER = {
    StateForm.NATURAL_LANGUAGE: f'{_TASK} Page 1 of the results for "soft cup" is open. It lists a71, c02.',
    StateForm.STRUCTURED: f'{{"task": "{EXAMPLE_TASK}", "page": "results", "query": "soft cup", '
    '"results_page": 1, "products": ["a71", "c02"]}',
}


def write_guide(options: ShopOptions) -> str:
    """Goal, rules and rewards."""
    if options.size == "tiny":
        return "You shop. Find what the task asks for, choose its values, buy it within the price."
    return "\n".join(
        [
            "You shop in a web shop. Find a product that is what the task asks for, choose the values it "
            "names (size, color and the like), and buy it for no more than the price it names.",
            "On the search page, write search[words]. Everywhere else, click one of the things that the page "
            "shows as click[...]: a product, a value, a page with more about it, or a button.",
            "The purchase ends the task and gives up to 1 point: for the right kind of thing, the share of "
            "attributes, values and price that are as asked for.",
        ]
    )


def make_examples() -> dict[StateForm, ExampleTurn]:
    """The first search."""
    reasoning = "I search for the kind of thing and what it must be."
    return {form: ExampleTurn(BEFORE[form], reasoning, AFTER[form], "search[soft cup]") for form in BEFORE}
