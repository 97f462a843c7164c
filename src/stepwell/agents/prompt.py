"""System prompts: the world's own guide, what may be done, and the form of a reply.

Everything is said once, and only what is so: the guide is the environment's, limits and
names come from the world's data, and an example is shown only where the world has one. The
text is short because small models pay for each token of it in every episode.

Where actions are calls of tools, the tools are part of the guide: their schemas stand between `<tools>`
tags, in the form most models know, unless the chat template is to write them (`with_tools=False`).
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


def system_prompt(
    world: EnvDescription,
    strategy: Strategy,
    form: StateForm,
    *,
    with_guide: bool = True,
    with_tools: bool = True,
) -> str:
    """All an agent is told before the first observation; without the guide, only how to reply."""
    told = (world.guide.strip(), _turns_line(world)) if with_guide else ("", "")
    tools = tools_text(world.actions) if with_guide and with_tools else ""
    lines = [told[0], tools, actions_line(world.actions), told[1], reply_line(strategy, world.actions)]
    described = [f"<{_tag_of(strategy, f)}> is {_SAYS[f]}" for f in strategy.fields if f in _SAYS]
    if described:
        lines.append(f"{', '.join(described)}, {_HOW[form]}.")
    lines.append(strategy.instruction.strip())
    example = _example(world, strategy, form) if with_guide else None
    if example is not None:
        lines.append(f"Example: {written_example(world.actions, strategy, example)}")
    return "\n".join(line for line in lines if line)


def actions_line(actions: ActionSpace) -> str:
    """What the answer holds."""
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


def tools_text(actions: ActionSpace) -> str:
    """The tools in their OpenAI schema, one a line, between tags; empty without tools."""
    tools = [json.dumps(tool.to_openai(), ensure_ascii=False) for tool in actions.callable_tools]
    return "\n".join(["<tools>", *tools, "</tools>"]) if tools else ""


def reply_line(strategy: Strategy, actions: ActionSpace) -> str:
    """The form of a reply."""
    if not actions.tools:
        return f"Reply: {strategy.skeleton}"
    thinking = "".join(mark.text + ("..." if mark.inside else "") for mark in strategy.marks[:-2])
    call = f'{thinking}<{CALL}>{{"name": ..., "arguments": {{...}}}}</{CALL}>'
    more = " (a pair of tags for each call)" if actions.max_per_turn > 1 else ""
    answer = f", or {thinking}<{ANSWER}>...</{ANSWER}>" if actions.answer else ""
    return f"Reply: {call}{more}{answer}"


def written_example(actions: ActionSpace, strategy: Strategy, example: ExampleTurn) -> str:
    """One turn of the world as this strategy writes it; `InputError` where its answer is none."""
    fields = {
        Field.OBSERVATION: example.observation,
        Field.REASONING: example.reasoning,
        Field.PREDICTION: example.prediction,
        Field.ANSWER: example.answer,
    }
    return write_reply(strategy, actions, fields)


def _turns_line(world: EnvDescription) -> str:
    return f"You have {world.max_turns} turn{'s' if world.max_turns > 1 else ''}."


def _example(world: EnvDescription, strategy: Strategy, form: StateForm) -> ExampleTurn | None:
    """The example in the asked form; any will do where the strategy writes no state."""
    if set(strategy.fields) & set(_SAYS):
        return world.examples.get(form)
    return world.examples.get(form) or next(iter(world.examples.values()), None)


def _tag_of(strategy: Strategy, wanted: Field) -> str:
    return next(mark.name for mark in strategy.marks if mark.inside == wanted)
