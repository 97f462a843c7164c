"""What agents are told of multi-hop QA, and the tools they have."""

from __future__ import annotations

from stepwell.core import Actions, ToolSchema
from stepwell.envs.multihop_qa.options import MultihopOptions

MAX_QUERY_CHARS, MAX_ANSWER_CHARS = 500, 300
SEARCH = ToolSchema(
    "search",
    "Finds passages by words.",
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


def actions(options: MultihopOptions) -> Actions:
    """Searches, as many in a turn as are allowed, or the answer."""
    return Actions(tools=(SEARCH, ANSWER), max_per_turn=options.max_searches, answer=ANSWER.name)


def guide(options: MultihopOptions) -> str:
    """The goal and the rules, as they are under these options."""
    if options.size == "tiny" and options.dataset is None:
        number = "size" if options.domain == "in" else "price"
        return (
            "Answer the question with a code. Search for a code to see what it leads to: the cup of the door "
            "of A is the cup of the code that A has as its door. "
            f"Of two codes, the one with more {number} counts."
        )
    lines = [
        "Answer the question. What it takes stands in several passages, and one often tells only what to "
        "search for next.",
        f"A search shows the {options.results_per_search} passages that fit its words best. Searches of one "
        "turn are made together, so none of them can use what another finds.",
        "The answer is a name, a number, a code or a few words, as the passages write it, and no sentence. "
        "There is only one.",
    ]
    return "\n".join(lines)
