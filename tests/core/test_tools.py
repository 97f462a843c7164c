"""Tools: calls read and written, arguments judged against their schema, and nothing but InputError."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core import (
    ActionSpace,
    InputError,
    ToolCall,
    ToolSchema,
    draw_random_call,
    find_call_problem,
    read_call,
)

SEARCH = ToolSchema(
    "search",
    "Finds.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "maxLength": 10},
            "top": {"type": "integer", "minimum": 1, "maximum": 9},
            "where": {"type": "string", "enum": ["title", "body"]},
            "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        },
        "required": ["query"],
    },
)
STOP = ToolSchema("stop")
TOOLS = (SEARCH, STOP)
ANSWER = ToolSchema(
    "answer", "", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_call_is_written_with_its_name_first_and_letters_as_they_are() -> None:
    call = ToolCall("search", {"query": "Brunnen – 井"}, id="call7")
    assert call.text == '{"name": "search", "arguments": {"query": "Brunnen – 井"}}'
    assert read_call(call.text) == ToolCall("search", {"query": "Brunnen – 井"})


@given(st.text(min_size=1), st.dictionaries(st.text(), plain, max_size=4))
def test_a_call_reads_back_as_it_was_written(name: str, arguments: dict) -> None:
    call = ToolCall(name, arguments)
    assert read_call(call.text) == call


@given(st.text() | plain.map(lambda value: json.dumps(value)) | st.text().map(lambda t: '{"name": ' + t))
def test_reading_any_text_gives_a_call_or_one_sentence(text: str) -> None:
    try:
        call = read_call(text)
    except InputError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert read_call(call.text) == ToolCall(call.name, call.arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("search", "not valid JSON"),
        ("[]", "must be a JSON object, not list"),
        ('{"arguments": {}}', 'needs a "name"'),
        ('{"name": 3, "arguments": {}}', 'needs a "name"'),
        ('{"name": "search", "arguments": [1]}', '"arguments" must be a JSON object'),
        ('{"name": "search", "arguments": "{"}', "a string that is not valid JSON"),
        ('{"name": "search", "arguments": {"top": NaN}}', "NaN is not a JSON number"),
        ('{"name": "search", "arguments": {"top": 1e999}}', "inf is not a JSON number"),
        ('{"name": "search", "arguments": {"query": "\\ud800"}}', "half of a surrogate pair"),
        ('{"name": "s", "arguments": {"a": ' + "[" * 40 + "]" * 40 + "}}", "32 levels deep"),
        ('{"name": "s", "arguments": ' + "[" * 200_000, "nested too deeply"),
    ],
)
def test_what_is_no_call_is_said_to_be_none(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_call(text)


def test_arguments_may_be_called_parameters_and_may_be_quoted() -> None:
    assert read_call('{"name": "a", "parameters": {"x": 1}}') == ToolCall("a", {"x": 1})
    assert read_call('{"name": "a", "arguments": "{\\"x\\": 1}"}') == ToolCall("a", {"x": 1})
    assert read_call('{"name": "a"}') == ToolCall("a", {})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search", {"query": "a"}, ""),
        ("search", {"query": "a", "top": 3, "where": "body", "exact": True, "tags": ["x", "y"]}, ""),
        ("stop", {}, ""),
        ("find", {}, "there is no tool 'find'; the tools are: search, stop"),
        ("search", {}, "search needs the argument 'query'"),
        ("search", {"query": 3}, "search: argument 'query' must be of type string, not integer"),
        ("search", {"query": None}, "search: argument 'query' must be of type string, not null"),
        (
            "search",
            {"query": "a", "top": True},
            "search: argument 'top' must be of type integer, not boolean",
        ),
        ("search", {"query": "a", "top": 0}, "search: argument 'top' is '0', outside 1 to 9"),
        ("search", {"query": "a", "where": "end"}, "search: argument 'where' must be one of title, body"),
        (
            "search",
            {"query": "a" * 11},
            "search: argument 'query' is 11 characters long, at most 10 are allowed",
        ),
        (
            "search",
            {"query": "a", "tags": ["x", 1]},
            "search: argument 'tags' has an item that must be of type string, not integer",
        ),
        (
            "search",
            {"query": "a", "tags": ["x"] * 3},
            "search: argument 'tags' has 3 items, at most 2 are allowed",
        ),
        ("stop", {"now": 1}, "stop has no argument 'now'; its arguments are: none"),
    ],
)
def test_a_call_is_judged_in_one_sentence(name: str, arguments: dict, said: str) -> None:
    assert find_call_problem(TOOLS, ToolCall(name, arguments)) == said


@given(st.integers(0, 10**6))
def test_random_calls_can_be_made(seed: int) -> None:
    call = draw_random_call(TOOLS, random.Random(seed))
    assert find_call_problem(TOOLS, call) == "" and read_call(call.text) == call


def test_huge_names_and_arguments_are_not_repeated_whole() -> None:
    assert len(find_call_problem(TOOLS, ToolCall("x" * 10**6, {}))) < 100
    assert len(find_call_problem(TOOLS, ToolCall("stop", {"x" * 10**6: 1}))) < 120


def test_tools_are_actions_of_their_own_kind() -> None:
    actions = ActionSpace(tools=(SEARCH, ANSWER), max_per_turn=4, answer="answer")
    assert not actions.is_text
    assert actions.callable_tools == (SEARCH,) and actions.answer_argument == "text"
    assert ActionSpace(tools=TOOLS).callable_tools == TOOLS and ActionSpace(tools=TOOLS).answer_argument == ""
    with pytest.raises(InputError, match="either names or tool calls"):
        ActionSpace(("Up",), tools=TOOLS)
    with pytest.raises(InputError, match="not distinct"):
        ActionSpace(tools=(STOP, STOP))
    with pytest.raises(InputError, match="not one of the tools"):
        ActionSpace(tools=TOOLS, answer="answer")
    with pytest.raises(InputError, match="exactly one argument, a string"):
        ActionSpace(tools=TOOLS, answer="stop")
