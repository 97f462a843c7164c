"""System prompts: the environment's guide, the possible actions, and the form of a reply.

Everything is said once, and only if it is true: the guide comes from the environment, limits and
names come from its description, and an example is shown only if the environment has one. The
text is short because small models pay for each of its tokens in every episode.

If actions are tool calls, the tools are part of the guide: their schemas are between `<tools>`
tags, in the form most models know, unless the chat template writes them (`with_tools=False`).
"""

from __future__ import annotations

import json

from stepwell.agents.calls import ANSWER, CALL
from stepwell.agents.reply import write_reply
from stepwell.agents.strategy import Field, Strategy
from stepwell.core.env_description import ActionSpace, EnvDescription, ExampleTurn, StateForm

_HOW = {
    StateForm.NATURAL_LANGUAGE: "in words: where things are relative to each other",
    StateForm.SYMBOLIC: "as the grid of symbols",
    StateForm.STRUCTURED: "as a dictionary of positions",
}
_SAYS = {Field.OBSERVATION: "the state now", Field.PREDICTION: "the state after your answer"}


def write_system_prompt(
    description: EnvDescription,
    strategy: Strategy,
    form: StateForm,
    *,
    with_guide: bool = True,
    with_tools: bool = True,
) -> str:
    """All instructions before the first observation; without the guide only how to reply."""
    parts = (description.guide.strip(), _describe_turns(description)) if with_guide else ("", "")
    tools = describe_tools(description.actions) if with_guide and with_tools else ""
    lines = [
        parts[0],
        tools,
        describe_actions(description.actions),
        parts[1],
        describe_reply_form(strategy, description.actions),
    ]
    described = [f"<{_find_tag(strategy, f)}> is {_SAYS[f]}" for f in strategy.fields if f in _SAYS]
    if described:
        lines.append(f"{', '.join(described)}, {_HOW[form]}.")
    lines.append(strategy.instruction.strip())
    example = _find_example(description, strategy, form) if with_guide else None
    if example is not None:
        lines.append(f"Example: {write_example(description.actions, strategy, example)}")
    return "\n".join(line for line in lines if line)


def describe_actions(actions: ActionSpace) -> str:
    """What an answer may contain."""
    if actions.tools:
        most = actions.max_per_turn
        calls = "Call one tool in a turn" if most == 1 else f"Call 1 to {most} tools in a turn, all at once"
        return f"{calls}, or answer to end." if actions.answer else f"{calls}."
    if actions.is_text:
        return "Your answer is one action in text."
    names = f"Actions: {', '.join(actions.names)}."
    if actions.max_per_turn == 1:
        return f"{names} Answer with one."
    return f'{names} Answer with 1 to {actions.max_per_turn}, separated by "{actions.separator}".'


def describe_tools(actions: ActionSpace) -> str:
    """The tools in their OpenAI schema, one per line, between tags; empty without tools."""
    tools = [json.dumps(tool.to_openai(), ensure_ascii=False) for tool in actions.callable_tools]
    return "\n".join(["<tools>", *tools, "</tools>"]) if tools else ""


def describe_reply_form(strategy: Strategy, actions: ActionSpace) -> str:
    """The form of a reply."""
    if not actions.tools:
        return f"Reply: {strategy.skeleton}"
    thinking = "".join(mark.text + ("..." if mark.inside else "") for mark in strategy.marks[:-2])
    call = f'{thinking}<{CALL}>{{"name": ..., "arguments": {{...}}}}</{CALL}>'
    more = " (a pair of tags for each call)" if actions.max_per_turn > 1 else ""
    answer = f", or {thinking}<{ANSWER}>...</{ANSWER}>" if actions.answer else ""
    return f"Reply: {call}{more}{answer}"


def write_example(actions: ActionSpace, strategy: Strategy, example: ExampleTurn) -> str:
    """An example turn as this strategy writes it; `InputError` if its answer is invalid."""
    fields = {
        Field.OBSERVATION: example.observation,
        Field.REASONING: example.reasoning,
        Field.PREDICTION: example.prediction,
        Field.ANSWER: example.answer,
    }
    return write_reply(strategy, actions, fields)


def _describe_turns(description: EnvDescription) -> str:
    return f"You have {description.max_turns} turn{'s' if description.max_turns > 1 else ''}."


def _find_example(description: EnvDescription, strategy: Strategy, form: StateForm) -> ExampleTurn | None:
    """The example in the requested form; any example if the strategy writes no state."""
    if set(strategy.fields) & set(_SAYS):
        return description.examples.get(form)
    return description.examples.get(form) or next(iter(description.examples.values()), None)


def _find_tag(strategy: Strategy, wanted: Field) -> str:
    return next(mark.name for mark in strategy.marks if mark.inside == wanted)
