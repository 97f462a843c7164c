"""What a client sees of sampled ids: at once, in pieces, with stop strings and tool calls."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rendering.conftest import make_tokenizer
from tests.services.gateways import engine

from stepwell.core import ToolCall
from stepwell.rendering import Renderer, ToolFormat
from stepwell.services.gateway.replies import IncrementalReader, read_reply, read_reply_text
from stepwell.services.gateway.token_bytes import TokenDecoder

CALL = '{"name": "go", "arguments": {"to": "left"}}'
PIECES = [
    "<tool_call>", "</tool_call>", CALL, "[TOOL_CALLS]", f"[{CALL}]", "<|python_tag|>", "{", "}", "<tool",
    "<", "stop", "sto", "p", "The end.", " ", "\n", "  \n", "é", "☃", "日本", "<think>", "</think>", "word",
]  # fmt: skip
FAMILIES = [
    ("grouped_tools", "bytes", ToolFormat.HERMES),
    ("llama", "bytes", ToolFormat.LLAMA),
    ("mistral", "bytes", ToolFormat.MISTRAL),
    ("grouped_tools", "metaspace", ToolFormat.HERMES),
]


@cache
def renderer_of(family: str, kind: str) -> Renderer:
    return Renderer(make_tokenizer(family, kind), "template")


@cache
def tiny() -> Renderer:
    return Renderer(engine().tokenizer)


def stream_pieces(
    renderer: Renderer, ids: list[int], sizes: list[int], *options: Any
) -> tuple[list[str], Any]:
    reader, shown, at = IncrementalReader(renderer, *options), [], 0
    for size in sizes:
        shown.append(reader.feed(ids[at : at + size]))
        at += size
    shown.append(reader.feed(ids[at:]))
    rest, reading = reader.finish(ids)
    return [*shown, rest], reading


@given(
    family=st.sampled_from(FAMILIES),
    pieces=st.lists(st.sampled_from(PIECES), max_size=12),
    sizes=st.lists(st.integers(1, 3), max_size=30),
    stop=st.lists(st.sampled_from(["stop", "The", "\n", "☃", "p\n"]), max_size=2, unique=True),
    with_tools=st.booleans(),
    ended=st.booleans(),
)
def test_pieces_of_text_join_to_the_whole_reply(
    family: Any, pieces: list[str], sizes: list[int], stop: list[str], with_tools: bool, ended: bool
) -> None:
    name, kind, tool_format = family
    renderer = renderer_of(name, kind)
    ids = renderer.template.encode("".join(pieces)) + ([renderer.end_ids[0]] if ended else [])
    options = (tuple(stop), tool_format if with_tools else None)
    whole = read_reply(renderer, ids, *options)
    shown, reading = stream_pieces(renderer, ids, sizes, *options)
    assert "".join(shown) == whole.text and reading == whole
    assert not any(word in whole.text for word in stop)


@given(ids=st.lists(st.integers(0, 1023), max_size=24), sizes=st.lists(st.integers(1, 4), max_size=12))
def test_any_sampled_ids_stream_to_the_text_they_have_together(ids: list[int], sizes: list[int]) -> None:
    renderer = tiny()
    shown, reading = stream_pieces(renderer, ids, sizes)
    assert "".join(shown) == reading.text == read_reply(renderer, ids).text
    assert "\ufffd" not in "".join(shown[:-1]) or "\ufffd" in reading.text


def test_an_unfinished_character_is_held_back() -> None:
    renderer = tiny()
    ids = renderer.template.encode("日")
    assert len(ids) == 3
    reader = IncrementalReader(renderer)
    assert [reader.feed([id_]) for id_ in ids] == ["", "", "日"]


def test_text_that_may_become_a_stop_string_or_a_call_is_held_back() -> None:
    renderer = tiny()
    encode = renderer.template.encode
    reader = IncrementalReader(renderer, ("halt!",), ToolFormat.HERMES)
    assert reader.feed(encode("go ")) == "go"  # a blank may stand before a call
    assert reader.feed(encode("hal")) == ""
    assert reader.feed(encode("o <")) == " halo"
    assert reader.feed(encode("tool")) == ""
    assert reader.feed(encode("s>")) == " <tools>"
    assert reader.feed(encode(f"\n<tool_call>{CALL}")) == ""
    rest, reading = reader.finish(encode(f"go halo <tools>\n<tool_call>{CALL}</tool_call>"))
    assert rest == "" and reading.tool_calls == (ToolCall("go", {"to": "left"}, "call00000"),)


def test_a_turn_with_an_unreadable_call_is_plain_text() -> None:
    text = f"Well <tool_call>{CALL}</tool_call> and <tool_call>{{broken</tool_call>"
    reading = read_reply_text(text, (), ToolFormat.HERMES)
    assert (reading.text, reading.tool_calls) == (text, ())


def test_without_tools_markup_is_text() -> None:
    text = f"<tool_call>{CALL}</tool_call>"
    assert read_reply_text(text).text == text


def test_calls_are_numbered_and_text_around_them_is_kept() -> None:
    text = f"First \n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>"
    reading = read_reply_text(text, (), ToolFormat.HERMES, 3)
    assert reading.text == "First" and [call.id for call in reading.tool_calls] == ["call00003", "call00004"]


def test_the_earliest_and_longest_stop_string_counts() -> None:
    reading = read_reply_text("one two three", ("three", "tw", "two"))
    assert (reading.text, reading.stop_string) == ("one ", "two")


@pytest.mark.parametrize(("family", "kind"), [("chatml", "bytes"), ("gemma", "metaspace")])
@given(text=st.text(max_size=20))
def test_bytes_of_tokens_join_to_the_bytes_of_the_text(family: str, kind: str, text: str) -> None:
    tokenizer = make_tokenizer(family, kind)
    tokens = TokenDecoder(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    raw = b"".join(tokens.decode_token(id_, 0.0).raw for id_ in ids)
    if kind == "metaspace":  # a word mark stands at the beginning of a text
        raw = raw.removeprefix(b" ")
        text = text.removeprefix(" ")
    assert raw.decode(errors="replace") == text
