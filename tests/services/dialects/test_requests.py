"""Request bodies are parsed as intended in all dialects; unsupported options are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stepwell.core import ToolCall, ToolSchema
from stepwell.rendering import Message
from stepwell.services.errors import ErrorKind, ServiceError
from stepwell.services.gateway.chat import ChatRequest
from stepwell.services.gateway.dialects import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
)

CALL = ToolCall("look", {"at": "door"}, "c1")
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
LOOK = ToolSchema("look", "Look at a thing.", SCHEMA)
CONVERSATION = (
    Message.system("Be brief."),
    Message.user("Where?"),
    Message("assistant", "I look.", (CALL,)),
    Message("tool", "A door.", tool_call_id="c1", name="look"),
    Message.user("And now?"),
)


def chat(**fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return openai_chat.parse_request(openai_chat.ChatCompletionRequest.model_validate(body))


def completion(**fields: Any) -> ChatRequest:
    body = {"model": "m", "prompt": "hi", **fields}
    return openai_completions.parse_request(openai_completions.CompletionRequest.model_validate(body))


def response(*before: Message, **fields: Any) -> ChatRequest:
    body = openai_responses.ResponsesRequest.model_validate({"model": "m", "input": "hi", **fields})
    return openai_responses.parse_request(body, openai_responses.read_conversation(body, lambda _: before))


def message(**fields: Any) -> ChatRequest:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return anthropic_messages.parse_request(anthropic_messages.MessagesRequest.model_validate(body))


def test_all_dialects_read_the_same_conversation() -> None:
    call = {"name": "look", "arguments": '{"at": "door"}'}
    in_chat = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [{"id": "c1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "A door."},
            {"role": "user", "content": "And now?"},
        ],
        tools=[{"type": "function", "function": {"name": "look", "description": LOOK.description,
                                                 "parameters": SCHEMA, "strict": True}}],
    )  # fmt: skip
    in_responses = response(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "Where?"},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "id": "x", "status": "completed",
             "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", **call},
            {"type": "function_call_output", "call_id": "c1", "output": "A door."},
            {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
        ],
        tools=[{"type": "function", "name": "look", "description": LOOK.description, "parameters": SCHEMA}],
    )  # fmt: skip
    in_messages = message(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": "Where?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "door"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1",
                 "content": [{"type": "text", "text": "A door."}]},
                {"type": "text", "text": "And now?"}]},
        ],
        tools=[{"name": "look", "description": LOOK.description, "input_schema": SCHEMA}],
    )  # fmt: skip
    for ask in (in_chat, in_responses, in_messages):
        assert ask.messages == CONVERSATION
        assert ask.tools == (LOOK,)


def test_sampling_options_arrive() -> None:
    ask = chat(max_completion_tokens=5, temperature=0.5, top_p=0.9, n=3, stop=["a", "b"], seed=-7,
               logprobs=True, metadata={"run": "1"}, user="me")  # fmt: skip
    assert (ask.max_tokens, ask.temperature, ask.top_p, ask.num_choices) == (5, 0.5, 0.9, 3)
    assert (ask.stop, ask.seed, ask.num_top_logprobs) == (("a", "b"), -7, 0)
    assert ask.metadata == {"run": "1", "user": "me"}
    assert chat(max_tokens=4, stop="x").stop == ("x",)
    ask = message(stop_sequences=["x"], temperature=0, metadata={"user_id": "u"})
    assert (ask.stop, ask.temperature, ask.max_tokens, ask.metadata) == (("x",), 0.0, 9, {"user": "u"})


@pytest.mark.parametrize(("told", "meant"), [(None, 1.0), (0, 0.0), (1e-300, 0.0), (0.01, 0.01), (2, 2.0)])
def test_temperatures_that_would_overflow_mean_greedy(told: float | None, meant: float) -> None:
    for read in (chat, completion, response, message):
        assert read(temperature=told).temperature == meant


def test_completions_take_text_or_ids_and_sixteen_tokens() -> None:
    assert completion().prompt == "hi"
    assert completion(prompt=["hi"]).prompt == "hi"
    assert completion(prompt=[1, 2]).prompt == (1, 2)
    assert completion(prompt=[[1, 2]]).prompt == (1, 2)
    assert completion().max_tokens == 16
    assert (completion(logprobs=0).num_top_logprobs, completion().num_top_logprobs) == (0, None)


def test_previous_messages_come_before_new_ones_and_after_new_instructions() -> None:
    before = (Message.user("Where?"), Message("assistant", "", (CALL,)))
    new = [{"type": "function_call_output", "call_id": "c1", "output": "A door."}]
    ask = response(*before, instructions="Be quick.", previous_response_id="resp-1", input=new)
    assert ask.messages == (Message.system("Be quick."), *before, CONVERSATION[3])
    known = (Message.system("Be quick."), *before)  # as a gateway knows it after a restart
    assert (
        ask.messages
        == response(*known, instructions="Be quick.", previous_response_id="x", input=new).messages
    )


def test_items_of_one_assistant_turn_become_one_message() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"door"}'}
    assistant_message = [{"role": "assistant", "content": text} for text in ("one ", "two")]
    ask = response(
        input=[assistant_message[0], call, assistant_message[1], {"role": "user", "content": "go"}]
    )
    assert ask.messages == (Message("assistant", "one two", (CALL,)), Message.user("go"))


def test_failed_tool_results_start_with_error() -> None:
    result = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": "no such door"}
    ask = message(messages=[{"role": "user", "content": [result]}])
    assert ask.messages == (Message("tool", "Error: no such door", tool_call_id="c"),)


def test_tool_choice_none_hides_the_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert len(chat(tools=[tool]).tools) == 1
    assert chat(tools=[tool], tool_choice="none").tools == ()
    assert message(tools=[{"name": "f"}], tool_choice={"type": "none"}).tools == ()


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
UNHONOURED: list[tuple[Any, dict[str, Any], str]] = [
    (chat, {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
    (chat, {"tool_choice": "required"}, "tool_choice"),
    (chat, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    (chat, {"tools": [{"type": "function", "function": {"name": "f"}}], "parallel_tool_calls": False},
     "parallel_tool_calls"),
    (chat, {"response_format": {"type": "json_object"}}, "response_format"),
    (chat, {"logprobs": True, "top_logprobs": 2}, "top_logprobs"),
    (chat, {"frequency_penalty": 0.5}, "frequency_penalty"),
    (chat, {"logit_bias": {"5": 1}}, "logit_bias"),
    (chat, {"functions": [{"name": "f"}]}, "functions"),
    (chat, {"stop": ["x"] * 17}, "stop"),
    (chat, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function"),
    (chat, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
     "tools[0].function"),
    (chat, {"messages": [{"role": "assistant", "tool_calls": [
        {"id": "c", "function": {"name": "f", "arguments": "{"}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    (completion, {"prompt": ["a", "b"]}, "prompt"),
    (completion, {"prompt": ""}, "prompt"),
    (completion, {"prompt": [[]]}, "prompt"),
    (completion, {"echo": True}, "echo"),
    (completion, {"best_of": 3, "n": 2}, "best_of"),
    (completion, {"logprobs": 1}, "logprobs"),
    (response, {"input": []}, "input"),
    (response, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    (response, {"background": True}, "background"),
    (response, {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
    (response, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (response, {"truncation": "auto"}, "truncation"),
    (message, {"messages": [{"role": "assistant", "content": "I"}]}, "messages"),
    (message, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
     "messages[0].content[0]"),
    (message, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    (message, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (message, {"tools": [{"name": "f"}],
               "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
     "tool_choice.disable_parallel_tool_use"),
    (message, {"top_k": 5}, "top_k"),
    (message, {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
]  # fmt: skip


@pytest.mark.parametrize(("read", "fields", "param"), UNHONOURED)
def test_unsupported_options_are_refused_by_name(read: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ServiceError) as caught:
        read(**fields)
    assert (caught.value.kind, caught.value.param) == (ErrorKind.INVALID, param)
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "title": "\ud800"},
        {"type": "object", "default": float("nan")},
        {"type": "object", "properties": [[[]]] * 2},
    ],
)
def test_json_that_no_template_could_write_is_refused(parameters: dict[str, Any]) -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"a": deep}
    if isinstance(parameters.get("properties"), list):
        parameters = {"type": "object", "properties": deep}
    with pytest.raises(ServiceError, match=r"tools\[0\]"):
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])


ANY_TEXT = st.text(st.characters(codec=None, categories=None), max_size=5)  # halves of surrogate pairs too
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def spoil_value(value: Any, path: list[int], new: Any) -> Any:
    """`value` with what stands at `path` replaced: the path's numbers choose keys and places."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[path[0] % len(keys)]
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = spoil_value(value[key], path[1:], new)
    return copy


WHOLE: list[tuple[Any, dict[str, Any]]] = [
    (chat, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]},
                         {"role": "assistant", "content": None, "tool_calls": [
                             {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                         {"role": "tool", "tool_call_id": "c", "content": "r"}],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
            "tool_choice": "auto", "stop": ["x"], "metadata": {"a": "b"}, "logit_bias": {}}),
    (completion, {"prompt": [[1, 2]], "stop": "x", "logprobs": 0}),
    (response, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                          {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                          {"type": "function_call_output", "call_id": "c", "output": "r"}],
                "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
                "text": {"format": {"type": "text"}}, "include": ["message.output_text.logprobs"]}),
    (message, {"messages": [{"role": "assistant", "content": [
                                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
                            {"role": "user", "content": [
                                {"type": "tool_result", "tool_use_id": "c", "content": "r"}]}],
               "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"}}),
]  # fmt: skip


@given(st.sampled_from(WHOLE), st.lists(st.integers(0, 9), max_size=6), JSON_VALUES)
def test_any_body_is_read_or_refused(whole: tuple[Any, dict[str, Any]], path: list[int], new: Any) -> None:
    read, fields = whole
    broken = spoil_value(fields, path, new)
    try:
        ask = read(**broken if isinstance(broken, dict) else {})
    except (ServiceError, ValidationError):
        return
    assert (ask.messages is None) != (ask.prompt is None)
