"""Tool calls read out of sampled text: every format, parallel calls, and broken ones as values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell.core.tools import ToolCall, ToolSchema
from stepwell.rendering import Message, Renderer, ToolFormat, parse_reply, probe_template
from stepwell.rendering.tiny import build_tokenizer
from stepwell.rendering.tool_calls import detect_format

MOVE = {"name": "move", "arguments": {"direction": "Up", "steps": 2}}
LOOK = {"name": "look", "arguments": {}}
CALLS = (
    ToolCall("move", {"direction": "Up", "steps": 2}, "call00000"),
    ToolCall("look", {}, "call00001"),
)


def spell(tool_format: ToolFormat, calls: list[dict[str, Any]]) -> str:
    if tool_format == ToolFormat.HERMES:
        return "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    if tool_format == ToolFormat.MISTRAL:
        return f"[TOOL_CALLS] {json.dumps(calls)}"
    renamed = [{"name": call["name"], "parameters": call["arguments"]} for call in calls]
    return "; ".join(json.dumps(call) for call in renamed)


@pytest.mark.parametrize("tool_format", list(ToolFormat))
def test_parallel_calls_are_read_in_order(tool_format: ToolFormat) -> None:
    reply = parse_reply(spell(tool_format, [MOVE, LOOK]), tool_format)
    assert reply.tool_calls == CALLS
    assert reply.content == "" and reply.errors == ()


def test_words_around_calls_are_content() -> None:
    hermes = parse_reply(f"I go up. {spell(ToolFormat.HERMES, [MOVE])} Done.", "hermes")
    assert (hermes.content, hermes.tool_calls) == ("I go up.  Done.", CALLS[:1])
    mistral = parse_reply(f"I go up. {spell(ToolFormat.MISTRAL, [MOVE])}", "mistral")
    assert (mistral.content, mistral.tool_calls) == ("I go up.", CALLS[:1])
    tagged = parse_reply(f"I go up.<|python_tag|>{spell(ToolFormat.LLAMA, [MOVE])}", "llama")
    assert (tagged.content, tagged.tool_calls) == ("I go up.", CALLS[:1])


def test_numbers_of_calls_go_on_and_given_ids_are_kept() -> None:
    text = '[TOOL_CALLS] [{"name": "look", "arguments": {}, "id": "abcdefghi"}, {"name": "look"}]'
    ids = [call.id for call in parse_reply(text, "mistral", first_number=7).tool_calls]
    assert ids == ["abcdefghi", "call00008"]


def test_arguments_as_a_quoted_string_are_opened() -> None:
    text = '<tool_call>{"name": "look", "arguments": "{\\"at\\": 1}"}</tool_call>'
    assert parse_reply(text, "hermes").tool_calls == (ToolCall("look", {"at": 1}, "call00000"),)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"name": "look", "arguments": {', "not valid JSON"),
        ("[1, 2]", "must be a JSON object, not list"),
        ('{"arguments": {}}', 'needs a "name"'),
        ('{"name": "", "arguments": {}}', 'needs a "name"'),
        ('{"name": 3, "arguments": {}}', 'needs a "name"'),
        ('{"name": "look", "arguments": [1]}', '"arguments" must be a JSON object'),
        ('{"name": "look", "arguments": "up"}', '"arguments" is a string that is not valid JSON'),
        ('{"name": "look", "arguments": {"x": NaN}}', "NaN is not a JSON number"),
        ("[" * 100_000, "nested too deeply"),
        ("", "not valid JSON"),
    ],
)
def test_a_broken_call_is_an_error_value_and_does_not_hide_the_others(body: str, reason: str) -> None:
    good = spell(ToolFormat.HERMES, [MOVE])
    reply = parse_reply(f"<tool_call>{body}</tool_call>{good}", "hermes")
    assert reply.tool_calls == CALLS[:1]
    assert len(reply.errors) == 1
    assert reason in reply.errors[0].reason
    assert reply.errors[0].text == body


def test_an_unclosed_call_is_an_error() -> None:
    reply = parse_reply('Up. <tool_call>{"name": "look", "arguments": {}}', "hermes")
    assert reply.tool_calls == () and reply.content == "Up."
    assert "never closed" in reply.errors[0].reason


def test_an_answer_in_json_is_not_a_call_in_the_llama_format() -> None:
    for text in ('{"answer": 42}', "[1, 2, 3]", "{not json", "plain words"):
        reply = parse_reply(text, "llama")
        assert (reply.content, reply.tool_calls, reply.errors) == (text, (), ())
    cut = parse_reply('{"name": "look", "parameters": {"at"', "llama")
    assert cut.tool_calls == () and "not valid JSON" in cut.errors[0].reason


def test_text_after_a_mistral_list_is_an_error_beside_the_calls() -> None:
    reply = parse_reply(spell(ToolFormat.MISTRAL, [MOVE]) + " and then", "mistral")
    assert reply.tool_calls == CALLS[:1]
    assert "text after the list" in reply.errors[0].reason
    assert parse_reply("[TOOL_CALLS] oops", "mistral").errors[0].reason.startswith("not valid JSON")


FRAGMENTS = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    '{"name": "a"',
    ', "arguments": ',
    "{}",
    "}",
]


@pytest.mark.parametrize("tool_format", list(ToolFormat))
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=8), max_size=10).map("".join))
def test_no_text_crashes_a_parser(tool_format: ToolFormat, text: str) -> None:
    reply = parse_reply(text, tool_format)
    assert all(call.name and isinstance(call.arguments, dict) for call in reply.tool_calls)
    if not any(sign in text for sign in ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", '"name"')):
        assert (reply.content, reply.tool_calls, reply.errors) == (text.strip(), (), ())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("tool_format", list(ToolFormat))
@example([{"name": "<|python_tag|>", "arguments": {"<tool_call>": "[TOOL_CALLS]"}}])
@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.text(min_size=1), "arguments": st.dictionaries(st.text(), json_values, max_size=3)}
        ),
        min_size=1,
        max_size=3,
    )
)
def test_what_was_spelled_is_what_is_read(tool_format: ToolFormat, calls: list[dict[str, Any]]) -> None:
    text = spell(tool_format, calls)
    read = parse_reply(text, tool_format)
    assert [{"name": call.name, "arguments": call.arguments} for call in read.tool_calls] == calls
    assert read.errors == ()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grouped_tools", ToolFormat.HERMES),
        ("llama", ToolFormat.LLAMA),
        ("mistral", ToolFormat.MISTRAL),
        ("chatml", None),
    ],
)
def test_the_format_of_a_template_is_found(
    tokenizer_of: Callable[..., Any], name: str, expected: ToolFormat | None
) -> None:
    assert probe_template(tokenizer_of(name)).tool_format == expected


def test_a_call_in_tags_that_is_not_json_is_no_format_of_ours() -> None:
    assert detect_format("<tool_call><function=look></function></tool_call>") is None


def test_what_the_tiny_template_writes_is_read_back() -> None:
    renderer = Renderer(build_tokenizer())
    message = Message.assistant("Let me see.", CALLS)
    tools = [ToolSchema("move"), ToolSchema("look")]
    asked = [Message.user("Where?")]
    before = renderer.start(asked, tools).text
    written = renderer.template.render_text([*asked, message], tools, prompt=False)[len(before) :]
    assert renderer.report.tool_format is not None
    reply = parse_reply(written.removesuffix("<|im_end|>\n"), renderer.report.tool_format)
    assert (reply.content, reply.tool_calls, reply.errors) == ("Let me see.", CALLS, ())
