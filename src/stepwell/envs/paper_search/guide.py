"""The guide of paper search for agents: goal, tools and rewards under the options, and a first turn.

No generated paper is about the request of the example.
"""

from __future__ import annotations

from stepwell.core import JSON, ExampleTurn, StateForm, ToolCall, ToolSchema
from stepwell.envs.paper_search.options import PaperLimits, PaperSearchOptions
from stepwell.envs.paper_search.papers import Quality
from stepwell.envs.paper_search.text import EpisodeState, write_sentences, write_structured

SEARCH, EXPAND = "search", "expand"


def make_tools(options: PaperSearchOptions, limits: PaperLimits) -> tuple[ToolSchema, ToolSchema]:
    """Search and expand, in OpenAI's schema."""
    found = f"Up to {limits.num_results} papers that match the query."
    linked = f"Up to {limits.num_citing} papers citing a paper of the pool, and {limits.num_cited} it cites."
    query: dict[str, JSON] = {"type": "string", "maxLength": options.max_query_chars}
    paper: dict[str, JSON] = {"type": "string", "maxLength": 64}
    if not limits.is_short:
        query["description"] = "words to search titles and abstracts for"
        paper["description"] = "the id of a paper that is listed in the pool"
    return (
        ToolSchema(SEARCH, found, _make_object("query", query)),
        ToolSchema(EXPAND, linked, _make_object(name_paper_argument(limits), paper)),
    )


def name_paper_argument(limits: PaperLimits) -> str:
    """The name of the paper argument of `expand`."""
    return "id" if limits.is_short else "paper_id"


def write_guide(options: PaperSearchOptions, limits: PaperLimits) -> str:
    """Goal, rules and rewards."""
    if limits.is_short:
        return (
            "Collect the papers about all words of the need, or about words that mean the same. "
            f"search finds by words, expand follows citations. {limits.max_calls} calls per turn. "
            f"Repeats and ids not in the pool cost {options.penalty:g}."
        )
    return "\n".join(
        [
            "You collect the papers that answer a request into a pool. The pool starts empty.",
            f"search(query) adds the {limits.num_results} papers that match the query best. "
            f"expand(paper_id) adds papers linked to a paper of the pool: up to {limits.num_citing} that "
            f"cite it and up to {limits.num_cited} that it cites. "
            "Papers that are plainly irrelevant are dropped.",
            "The same thing has several names in the literature, and the request uses one of them: what "
            "other papers call it can be searched for too, or reached through citations.",
            f"A turn takes up to {limits.max_calls} calls, made in parallel: only papers that are in the "
            "pool before the turn can be expanded.",
            "A turn gives the relevance (0 to 1 each) of its three most relevant new papers. A query asked "
            "before, a paper expanded before and a paper that is not in the pool cost "
            f"{options.penalty:g} each.",
            "At the end all relevant papers in the pool count, against all that there are (F1).",
        ]
    )


def make_examples(limits: PaperLimits) -> dict[StateForm, ExampleTurn]:
    """The first turn of a request: a search in its own words."""
    before = EpisodeState("Which papers study bridge inspection with flying cameras?", 12)
    after = before._replace(pool_size=limits.num_results, num_searches=1, quality=Quality(0.4, 0.25, 1.0))
    reasoning = "Nothing is found yet, so I search in the words of the request."
    call = ToolCall(SEARCH, {"query": "bridge inspection flying cameras"}).text
    forms = {StateForm.NATURAL_LANGUAGE: write_sentences, StateForm.STRUCTURED: write_structured}
    return {form: ExampleTurn(tell(before), reasoning, tell(after), call) for form, tell in forms.items()}


def _make_object(name: str, schema: dict[str, JSON]) -> dict[str, JSON]:
    return {"type": "object", "properties": {name: schema}, "required": [name]}
