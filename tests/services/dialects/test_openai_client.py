"""The real `openai` package, over real HTTP, gets what OpenAI's own API would send."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from tests.services.dialects.echo_gateway import Served

CALLS = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
TWO = f'I look.{CALLS}<tool_call>{{"name": "go", "arguments": {{"steps": 2}}}}</tool_call>'
NAMES = ("look", "go")
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in NAMES]
TOOLS: Any = [{"type": "function", "name": name, "parameters": None, "strict": None} for name in NAMES]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, words: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": words}]
    return client.chat.completions.create(model="echo", messages=messages, **options)


def test_a_chat_completion_has_text_usage_and_a_finish_reason(client: openai.OpenAI) -> None:
    got = ask(client, "hello you")
    (choice,) = got.choices
    assert (choice.message.content, choice.finish_reason, choice.logprobs) == ("hello you", "stop", None)
    assert got.usage.completion_tokens > 0
    assert got.usage.total_tokens == got.usage.prompt_tokens + got.usage.completion_tokens
    assert abs(got.created - time.time()) < 100 and got.model == "echo" and got.id.startswith("chatcmpl")


def test_stop_strings_and_limits_cut_the_answer(client: openai.OpenAI) -> None:
    (stopped,) = ask(client, "one, two, three", stop=[", three"]).choices
    assert (stopped.message.content, stopped.finish_reason) == ("one, two", "stop")
    (cut,) = ask(client, "one, two, three, four, five, six", max_completion_tokens=2).choices
    assert cut.finish_reason == "length"
    assert "one, two, three, four, five, six".startswith(cut.message.content)


def test_n_gives_as_many_choices_streamed_or_not(client: openai.OpenAI) -> None:
    got = ask(client, "hello you", n=3)
    assert [(c.index, c.message.content) for c in got.choices] == [(i, "hello you") for i in range(3)]
    texts = ["", "", ""]
    reasons = {}
    for chunk in ask(client, "hello you", n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
    assert texts == ["hello you"] * 3 and reasons == dict.fromkeys(range(3), "stop")


def test_logprobs_are_of_the_sampled_tokens(client: openai.OpenAI) -> None:
    got = ask(client, "hello you", logprobs=True).choices[0].logprobs.content
    assert "".join(entry.token for entry in got).startswith("hello you")
    assert b"".join(bytes(entry.bytes) for entry in got).startswith(b"hello you")
    assert [entry.logprob for entry in got] == [-0.5 * (i + 1) for i in range(len(got))]
    stream_pieces = [
        entry
        for chunk in ask(client, "hello you", logprobs=True, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    assert stream_pieces == got


def test_a_chat_stream_builds_up_to_the_same_completion(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": TWO}]
    options: Any = {"stream_options": {"include_usage": True}, "tools": CHAT_TOOLS}
    with client.chat.completions.stream(model="echo", messages=messages, **options) as stream:
        ids = {event.chunk.id for event in stream if event.type == "chunk"}
        stream_pieces = stream.get_final_completion()
    whole = ask(client, TWO, tools=CHAT_TOOLS)
    assert ids == {stream_pieces.id}
    for got in (stream_pieces, whole):
        (choice,) = got.choices
        assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
        assert calls == [("look", {"at": "door"}), ("go", {"steps": 2})]
        assert len({call.id for call in choice.message.tool_calls}) == 2
    assert stream_pieces.usage.completion_tokens == whole.usage.completion_tokens


def test_tool_results_are_sent_back_with_their_calls(client: openai.OpenAI) -> None:
    assistant_message = ask(client, CALLS, tools=CHAT_TOOLS).choices[0].message
    assert assistant_message.content is None
    messages: Any = [
        {"role": "user", "content": CALLS},
        assistant_message,
        {"role": "tool", "tool_call_id": assistant_message.tool_calls[0].id, "content": "A door."},
    ]
    got = client.chat.completions.create(model="echo", messages=messages, tools=CHAT_TOOLS)
    assert (got.choices[0].message.content, got.choices[0].finish_reason) == ("A door.", "stop")


def test_a_stream_has_usage_only_if_requested(client: openai.OpenAI) -> None:
    silent = list(ask(client, "hello you", stream=True))
    assert [chunk for chunk in silent if chunk.usage or not chunk.choices] == []
    *_, last = ask(client, "hello you", stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.completion_tokens > 0


def test_completions_continue_plain_text(client: openai.OpenAI) -> None:
    got = client.completions.create(model="echo", prompt="abc", logprobs=0, max_tokens=100)
    (choice,) = got.choices
    assert (choice.text, choice.finish_reason) == ("abc", "stop")
    assert "".join(choice.logprobs.tokens).startswith("abc")
    assert choice.logprobs.text_offset[0] == 0
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens)
    assert got.usage.completion_tokens == len(choice.logprobs.tokens) + 1  # and the end token
    stream = client.completions.create(
        model="echo", prompt="abc", logprobs=0, max_tokens=100, n=2, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    texts, offsets = ["", ""], [[], []]  # type: ignore[var-annotated]
    for chunk in stream:
        for piece in chunk.choices:
            texts[piece.index] += piece.text
            offsets[piece.index] += piece.logprobs.text_offset if piece.logprobs else []
    assert texts == ["abc", "abc"] and offsets == [choice.logprobs.text_offset] * 2
    assert chunk.usage is not None and chunk.usage.completion_tokens == 2 * got.usage.completion_tokens


def test_a_response_has_items_and_continues_an_earlier_one(client: openai.OpenAI) -> None:
    first = client.responses.create(model="echo", input="hello you", instructions="Be brief.")
    assert (first.output_text, first.status, first.instructions) == ("hello you", "completed", "Be brief.")
    assert first.usage is not None and first.usage.output_tokens > 0
    second = client.responses.create(model="echo", input="and now", previous_response_id=first.id)
    assert second.output_text == "and now"
    assert second.previous_response_id == first.id
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="echo", input="hi", previous_response_id="resp-unknown")
    assert caught.value.param == "previous_response_id"


def test_a_response_stream_builds_up_to_the_same_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="echo", input=TWO, tools=TOOLS) as stream:
        events = list(stream)
        stream_pieces = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:3]] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    whole = client.responses.create(model="echo", input=TWO, tools=TOOLS)
    for got in (stream_pieces, whole):
        words, *calls = got.output
        assert words.content[0].text == "I look."
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [
            ("look", {"at": "door"}),
            ("go", {"steps": 2}),
        ]
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"result of {item.name}"}
        for item in stream_pieces.output[1:]
    ]
    after = client.responses.create(
        model="echo", input=results, tools=TOOLS, previous_response_id=stream_pieces.id
    )
    sent_whole: Any = [{"role": "user", "content": TWO}, *whole.output, *results]
    again = client.responses.create(model="echo", input=sent_whole, tools=TOOLS)
    assert after.output_text == again.output_text == "result of go"


def test_a_cut_response_is_incomplete(client: openai.OpenAI) -> None:
    words = "one, two, three, four, five, six"
    whole = client.responses.create(model="echo", input=words, max_output_tokens=2)
    with client.responses.stream(model="echo", input=words, max_output_tokens=2) as stream:
        *_, last = stream
    assert last.type == "response.incomplete"
    for got in (whole, last.response):
        assert got.status == "incomplete"
        assert got.incomplete_details is not None and got.incomplete_details.reason == "max_output_tokens"
        assert got.output_text and words.startswith(got.output_text)


def test_response_logprobs_are_included_if_requested(client: openai.OpenAI) -> None:
    include: Any = ["message.output_text.logprobs"]
    got = client.responses.create(model="echo", input="hello you", include=include)
    part: Any = got.output[0].content[0]  # type: ignore[union-attr]
    assert "".join(entry.token for entry in part.logprobs).startswith("hello you")
    with client.responses.stream(model="echo", input="hello you", include=include) as stream:
        stream_pieces: Any = stream.until_done().get_final_response().output[0].content[0]  # type: ignore[union-attr]
    assert [e.model_dump() for e in stream_pieces.logprobs] == [e.model_dump() for e in part.logprobs]


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_is_an_error_in_every_api(client: openai.OpenAI, stream: bool) -> None:
    """Before the first token by status; after it, as the stream's own error."""
    calls: Any = [
        lambda words: ask(client, words, stream=stream),
        lambda words: client.completions.create(model="echo", prompt=words, stream=stream),
        lambda words: client.responses.create(model="echo", input=words, stream=stream),
    ]
    for call in calls:
        with pytest.raises(openai.InternalServerError) as refused:
            call("be gone")
        assert refused.value.status_code == 503
        with pytest.raises(openai.APIError) as broken:
            list(call("break off"))
        assert "echo" in broken.value.message
        assert isinstance(broken.value, openai.APIStatusError) != stream


def test_mistakes_are_bad_requests_with_the_field_at_fault(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "hello", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "hello", max_tokens="five")
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "hello", tool_choice="required")
    assert caught.value.param == "tool_choice"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, "hello " * 5000)
    assert caught.value.code == "context_length_exceeded"


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["echo"]
    assert client.models.retrieve("echo").id == "echo"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("family/owl")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_cancels_its_sampling(served: Served, stream: bool) -> None:
    echo, messages = served.echo, [{"role": "user", "content": "wait"}]
    waiting, cancelled = echo.num_waiting, echo.num_cancelled

    async def listen() -> None:
        create: Any = client.chat.completions.create
        reply = await create(model="echo", messages=messages, stream=stream)
        assert stream and [chunk async for chunk in reply]

    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
        call = asyncio.create_task(listen())
        await until(lambda: echo.num_waiting > waiting)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await until(lambda: echo.num_cancelled > cancelled)
    assert (echo.num_waiting, echo.num_cancelled) == (waiting + 1, cancelled + 1)


async def until(fact: Callable[[], bool], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)
