"""Answers of chat APIs: read as the agent reads, sent back as the API takes them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.envs.tool_envs import Notes

from stepwell.agents import Agent
from stepwell.config.run import AgentConfig
from stepwell.core import InputError, Sampling, ToolCall
from stepwell.rendering import ImagePart, Message, TextPart
from stepwell.rewards.chat_client import ChatReply, parse_retry_after
from stepwell.rollout.chat_messages import encode_api_message, make_tool_results, read_outside_reply

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
AGENT = Agent(Notes().description, AgentConfig())


def called(name: str, arguments: Any, call_id: str = "c1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(message: dict[str, Any]) -> Any:
    return read_outside_reply(ChatReply(message, "stop", 3, 4), Sampling(0.5, seed=9))


@given(names=st.lists(NAMES, min_size=1, max_size=3))
def test_calls_in_the_apis_field_are_done_as_if_they_were_written(names: list[str]) -> None:
    calls = [called("look", json.dumps({"name": name}), f"c{i}") for i, name in enumerate(names)]
    reply = AGENT.read(said({"content": None, "tool_calls": calls}).text)
    assert reply.actions == tuple(ToolCall("look", {"name": name}).text for name in names)
    assert reply.is_strict, reply.problem


@given(message=st.dictionaries(st.sampled_from(["content", "tool_calls", "refusal", "role"]), ANY_JSON))
def test_whatever_an_api_answers_is_read_or_refused_as_unreadable(message: dict[str, Any]) -> None:
    try:
        read = said(message)
    except InputError:
        assert message["tool_calls"]
        return
    assert isinstance(read.text, str)
    AGENT.read(read.text)
    json.dumps(encode_api_message(read.message, lambda name: name))


def test_arguments_that_are_no_json_are_lost_and_sent_back_empty() -> None:
    read = said({"content": "", "tool_calls": [called("look", '{"name": ')]})
    reply = AGENT.read(read.text)
    assert reply.actions == () and "not valid JSON" in reply.lost
    (call,) = encode_api_message(read.message, str)["tool_calls"]
    assert call == called("look", "{}")


def test_texts_in_parts_and_refusals_are_what_was_said() -> None:
    parts = [{"type": "text", "text": "<answer>a"}, {"type": "text", "text": "b</answer>"}]
    assert said({"content": parts}).text == "<answer>ab</answer>"
    assert said({"content": None, "refusal": "I would rather not."}).text == "I would rather not."


def test_every_call_gets_a_result_and_images_stand_behind_them() -> None:
    calls = [ToolCall("look", {}, "c1"), ToolCall("look", {}, "c2")]
    first, last = make_tool_results(calls, Message.user("both are empty"))
    assert (first.tool_call_id, last.tool_call_id, last.text) == ("c1", "c2", "both are empty")
    shown = Message.user([ImagePart("p"), TextPart("see")])
    *results, image = make_tool_results(calls, shown)
    assert [result.tool_call_id for result in results] == ["c1", "c2"] and image is shown
    assert encode_api_message(image, lambda name: f"data:{name}")["content"] == [
        {"type": "image_url", "image_url": {"url": "data:p"}},
        {"type": "text", "text": "see"},
    ]


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [(None, 0.0), ("1.5", 1.5), ("-3", 0.0), ("soon", 0.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, wait_s: float) -> None:
    assert parse_retry_after(header) == wait_s
