"""Tests before training what a tokenizer's chat template supports.

`probe_template` runs short conversations through the same code that extends real ones, so
its report describes the actual behaviour, whatever the template's source looks like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepwell.core.errors import RenderError
from stepwell.core.step import JSON
from stepwell.core.tools import ToolCall, ToolSchema
from stepwell.rendering.extension import TurnEnding, continue_after, find_ending
from stepwell.rendering.messages import Message
from stepwell.rendering.refusal import Refusal
from stepwell.rendering.template import ChatTemplate, ChatTokenizer
from stepwell.rendering.tool_calls import ToolFormat, detect_format
from stepwell.rendering.vision.format import ImageFormat

_SCHEMA: dict[str, JSON] = {"type": "object", "properties": {"key": {"type": "string"}}}
_TOOL = ToolSchema("lookup_fact", "Find one fact", _SCHEMA)
_CALL = ToolCall("lookup_fact", {"key": "horizon"}, "call00001")
_THINKING = "<think>\nThe sky looks blue.\n</think>\n\nBlue."


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """What a chat template can do.

    `extends`: a plain conversation can continue from the ids that the engine read and sampled.
    `extends_thinking`, `extends_tools`: the same for turns with `<think>` and for turns with tools.
    `system`, `tools`, `tool_calls`, `tool_results`: the template writes them, without refusing or dropping.
    `end_ids`: the tokens that end a turn; an engine should stop at them. `problems`: what does not work, in
    words.
    """

    extends: bool
    extends_thinking: bool
    extends_tools: bool
    system: bool
    tools: bool
    tool_calls: bool
    tool_results: bool
    tool_format: ToolFormat | None
    ending: TurnEnding
    end_ids: tuple[int, ...]
    problems: tuple[str, ...]

    def require_extension(self, *, thinking: bool = False, tools: bool = False) -> None:
        """Raise `RenderError` if a run with exact history would keep starting new prompts."""
        wanted = {"plain turns": self.extends}
        if thinking:
            wanted["thinking"] = self.extends_thinking
        if tools:
            wanted["tools"] = self.extends_tools
        failing = [name for name, note_problem in wanted.items() if not note_problem]
        if failing:
            raise RenderError(
                f"this chat template cannot extend a conversation with {', '.join(failing)}: "
                f'{"; ".join(self.problems)}. Use history="template", which renders every turn afresh'
            )


def probe_template(
    tokenizer: ChatTokenizer,
    options: Mapping[str, Any] | None = None,
    image_format: ImageFormat | None = None,
) -> TemplateReport:
    """Test a template; raises `RenderError` only if it cannot write a question and an answer."""
    return inspect_template(ChatTemplate(tokenizer, options, image_format))


def inspect_template(template: ChatTemplate) -> TemplateReport:
    """As `probe_template`, of a template that is already made."""
    ending = find_ending(template)
    problems: list[str] = []

    def note_problem(what: str, problem: str | None) -> bool:
        if problem is not None:
            problems.append(f"{what}: {problem}")
        return problem is None

    system = note_problem("system messages", _writes_system(template))
    tools = note_problem("tools", _writes_tools(template))
    written_call = _write_example_call(template, (_TOOL,) if tools else ())
    tool_calls = note_problem(
        "tool calls", None if "horizon" in written_call else "the template leaves out tool calls"
    )
    tool_results = note_problem("tool results", _writes_tool_results(template, tools))
    extends = note_problem("plain turns", _find_extension_problem(template, ending, "Blue."))
    with_thinking = extends and note_problem("thinking", _find_extension_problem(template, ending, _THINKING))
    with_tools = (
        extends and tools and note_problem("turns with tools", _find_tool_extension_problem(template, ending))
    )
    return TemplateReport(
        extends=extends,
        extends_thinking=with_thinking,
        extends_tools=with_tools,
        system=system,
        tools=tools,
        tool_calls=tool_calls,
        tool_results=tool_results,
        tool_format=detect_format(written_call),
        ending=ending,
        end_ids=_end_ids(template, ending),
        problems=tuple(problems),
    )


def _writes_system(template: ChatTemplate) -> str | None:
    words = "Be brief and kind."
    try:
        text = template.render_text((Message("system", words), Message.user("Hello.")), prompt=True)
    except RenderError as error:
        return f"{error}; fold_system(messages) moves the text into the first user message"
    return None if words in text else "the template leaves out system messages"


def _writes_tools(template: ChatTemplate) -> str | None:
    try:
        text = template.render_text((Message.user("Hello."),), (_TOOL,), prompt=True)
    except RenderError as error:
        return str(error)
    return None if _TOOL.name in text else "the template lists no tools; describe them in the first message"


def _writes_tool_results(template: ChatTemplate, tools: bool) -> str | None:
    try:
        text = template.render_text(_make_tool_dialogue(), (_TOOL,) if tools else (), prompt=True)
    except RenderError as error:
        return str(error)
    return None if "it is blue" in text else "the template leaves out tool results"


def _make_tool_dialogue() -> tuple[Message, ...]:
    calls = Message.assistant("", [_CALL])
    return (Message.user("What color is the sky?"), calls, Message.tool("it is blue", _CALL))


def _write_example_call(template: ChatTemplate, tools: Sequence[ToolSchema]) -> str:
    """How the template writes a tool call; empty if it cannot."""
    asked, calls, _ = _make_tool_dialogue()
    try:
        before = template.render_text((asked,), tools, prompt=False)
        return template.render_text((asked, calls), tools, prompt=False).replace(before, "")
    except RenderError:
        return ""


def _find_extension_problem(template: ChatTemplate, ending: TurnEnding, answer: str) -> str | None:
    """Extend a conversation by two answers; None if both extensions are exact."""
    answer = answer if answer.startswith(ending.prompt_extra) else ending.prompt_extra + answer
    turns = [Message.user("What color is the sky?"), Message.assistant(answer), Message.user("And grass?")]
    turns += [Message.assistant(answer), Message.user("Thank you.")]
    return _find_first_problem(template, ending, turns, (1, 3))


def _find_tool_extension_problem(template: ChatTemplate, ending: TurnEnding) -> str | None:
    answer = Message.assistant(ending.prompt_extra + "Blue.")
    asked, calls, result = _make_tool_dialogue()
    turns = [asked, replace(calls, content=ending.prompt_extra), result, answer, Message.user("Thank you.")]
    return _find_first_problem(template, ending, turns, (1, 3), (_TOOL,))


def _find_first_problem(
    template: ChatTemplate,
    ending: TurnEnding,
    turns: Sequence[Message],
    replies: Sequence[int],
    tools: Sequence[ToolSchema] = (),
) -> str | None:
    for at in replies:
        before, reply, new = turns[:at], turns[at], turns[at + 1 : at + 2]
        try:
            prompt_text = template.render_text(before, tools, prompt=True)
            found = continue_after(template, ending, prompt_text, before, reply, new, tools)
        except RenderError as error:
            return str(error)
        if isinstance(found, Refusal):
            return found.reason
    return None


def _end_ids(template: ChatTemplate, ending: TurnEnding) -> tuple[int, ...]:
    """The first added token of the closing, then the tokenizer's own end token."""
    closing = [i for i in template.encode_after(ending.closing) if i in template.added_ids][:1]
    own = template.tokenizer.eos_token_id
    return tuple(dict.fromkeys([*closing, *([int(own)] if own is not None else [])]))
