"""The real `anthropic` package, over real HTTP, gets what Anthropic's own API would send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from tests.services.dialects.echo_gateway import Served

TWO = (
    'I look.<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
    '<tool_call>{"name": "go", "arguments": {"steps": 2}}</tool_call>'
)
TOOLS: Any = [{"name": name, "input_schema": {"type": "object"}} for name in ("look", "go")]


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


def options(words: str, **others: Any) -> dict[str, Any]:
    return {"model": "echo", "max_tokens": 500, "messages": [{"role": "user", "content": words}], **others}


def test_a_message_has_text_usage_and_a_stop_reason(client: anthropic.Anthropic) -> None:
    got = client.messages.create(**options("hello you", system="Be brief."))
    assert [block.text for block in got.content if block.type == "text"] == ["hello you"]
    assert (got.stop_reason, got.stop_sequence, got.role, got.model) == (
        "end_turn",
        None,
        "assistant",
        "echo",
    )
    assert got.usage.output_tokens > 0
    assert got.usage.input_tokens + (got.usage.cache_read_input_tokens or 0) > 0


def test_a_stream_builds_up_to_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**options(TWO, tools=TOOLS))
    with client.messages.stream(**options(TWO, tools=TOOLS)) as stream:
        stream_pieces = stream.get_final_message()
    for got in (whole, stream_pieces):
        words, *calls = got.content
        assert words.type == "text" and words.text == "I look."
        assert [(call.name, call.input) for call in calls if call.type == "tool_use"] == [
            ("look", {"at": "door"}),
            ("go", {"steps": 2}),
        ]
        assert got.stop_reason == "tool_use"
    assert stream_pieces.usage.output_tokens == whole.usage.output_tokens
    total = [u.input_tokens + (u.cache_read_input_tokens or 0) for u in (whole.usage, stream_pieces.usage)]
    assert total[0] == total[1] > 0


def test_events_come_in_the_documented_order(client: anthropic.Anthropic) -> None:
    names = [event.type for event in client.messages.create(**options(TWO, tools=TOOLS), stream=True)]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    assert names[1] == "content_block_start"
    assert names.count("content_block_start") == names.count("content_block_stop") == 3


def test_tool_results_are_sent_back_with_their_calls(client: anthropic.Anthropic) -> None:
    assistant_message = client.messages.create(**options(TWO, tools=TOOLS))
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"result of {block.name}"}
        for block in assistant_message.content
        if block.type == "tool_use"
    ]
    messages = [
        {"role": "user", "content": TWO},
        {"role": "assistant", "content": assistant_message.content},
        {"role": "user", "content": results},
    ]
    got = client.messages.create(**options("", messages=messages, tools=TOOLS))
    assert got.content[0].type == "text" and got.content[0].text == "result of go"


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_and_limits_are_reported(client: anthropic.Anthropic, stream: bool) -> None:
    def final(**others: Any) -> Any:
        if not stream:
            return client.messages.create(**options("one, two, three, four, five", **others))
        with client.messages.stream(**options("one, two, three, four, five", **others)) as events:
            return events.get_final_message()

    stopped = final(stop_sequences=[", three"])
    assert (stopped.content[0].text, stopped.stop_reason) == ("one, two", "stop_sequence")
    assert stopped.stop_sequence == ", three"
    cut = final(max_tokens=2)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 2


def test_an_engine_that_fails_is_an_error(client: anthropic.Anthropic) -> None:
    for stream in (False, True):
        with pytest.raises(anthropic.APIStatusError) as refused:
            client.messages.create(**options("be gone"), stream=stream)
        assert refused.value.status_code == 503
        assert refused.value.type == "overloaded_error"
    with pytest.raises(anthropic.APIStatusError) as broken:
        list(client.messages.create(**options("break off"), stream=True))
    assert broken.value.type == "overloaded_error"


def test_mistakes_are_bad_requests_that_name_the_field(client: anthropic.Anthropic) -> None:
    for others, field in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"tool_choice": {"type": "any"}, "tools": TOOLS}, "tool_choice"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
         "messages[0].content[0].text"),
    ):  # fmt: skip
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(**options("hello", **others))
        assert caught.value.type == "invalid_request_error"
        assert (caught.value.api_message or "").startswith(f"{field}: ")


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["echo"]
    assert client.models.retrieve("echo").display_name == "echo"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("owl")
