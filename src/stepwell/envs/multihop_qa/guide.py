"""The guide of multi-hop QA for agents, their tools, and one example turn.

The example is about a capital. No question starts from one, so it is true but not a task.
"""

from __future__ import annotations

from stepwell.core import ActionSpace, ExampleTurn, StateForm, ToolCall, ToolSchema
from stepwell.envs.multihop_qa.options import MultihopOptions
from stepwell.envs.multihop_qa.text import write_state

MAX_QUERY_CHARS, MAX_ANSWER_CHARS = 500, 300
SEARCH = ToolSchema(
    "search",
    "Finds the passages that fit a query best.",
    {
        "type": "object",
        "properties": {"query": {"type": "string", "maxLength": MAX_QUERY_CHARS}},
        "required": ["query"],
    },
)
ANSWER = ToolSchema(
    "answer",
    "Ends the episode with an answer to the question.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": MAX_ANSWER_CHARS}},
        "required": ["text"],
    },
)

EXAMPLE_QUESTION = "What is the telephone code of the country of Oslo?"
EXAMPLE_PLAN = ("Oslo", "Norway (country)")


def make_action_space(options: MultihopOptions) -> ActionSpace:
    """Searches, up to the limit of a turn, or the answer."""
    return ActionSpace(tools=(SEARCH, ANSWER), max_per_turn=options.max_searches, answer=ANSWER.name)


def write_guide(options: MultihopOptions) -> str:
    """Goal and rules under these options."""
    if options.is_tiny:
        number = "size" if options.domain == "in" else "price"
        return (
            "Answer the question with a code. Search for a code to see what it leads to: the cup of the door "
            "of A is the cup of the code that A has as its door. "
            f"Of two codes, the one with more {number} counts."
        )
    lines = [
        "Answer the question. What it takes stands in several passages, and one often tells only what to "
        "search for next.",
        f"A search shows the {options.results_per_search} passages that fit its query best. Searches of one "
        "turn are made together, so none of them can use what another finds.",
        "The answer is a name, a number, a code or a few words, as the passages write it, and no sentence. "
        "There is only one.",
    ]
    return "\n".join(lines)


def make_examples() -> dict[StateForm, ExampleTurn]:
    """The first turn of a question that needs two searches, one after the other."""
    before, after = (write_state(EXAMPLE_QUESTION, EXAMPLE_PLAN, EXAMPLE_PLAN[:n], None) for n in (0, 1))
    reasoning = "I must first know the country that Oslo is in, so I search for the city."
    call = ToolCall(SEARCH.name, {"query": "Oslo"}).text
    return {StateForm.NATURAL_LANGUAGE: ExampleTurn(before, reasoning, after, call)}
