"""Extended prompts begin with the exact ids that were seen and sampled, whatever those decode to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stepwell.core.errors import RenderError
from stepwell.core.tools import ToolCall, ToolSchema
from stepwell.rendering import Message, Renderer, RestartKind
from stepwell.rendering.tiny import build_tokenizer

EXTENDABLE = (
    "chatml",
    "grouped_tools",
    "llama",
    "gemma",
    "mistral",
    "think_stripping",
    "think_opening",
    "plain",
)
KINDS = ("bytes", "metaspace")
LOOKUP = ToolSchema("lookup", "Find a fact")
TINY = Renderer(build_tokenizer())
renderer_of = functools.cache(Renderer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXTENDABLE)
@given(data=st.data())
def test_every_extension_begins_with_prompt_and_action_as_sampled(
    tokenizer_of: Callable[..., Any], name: str, kind: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of(name, kind)
    renderer = renderer_of(tokenizer)
    ids = st.lists(st.integers(0, len(tokenizer) - 1), max_size=12)
    rendered = renderer.start([Message.user("What color is the sky?")])
    for word in ("And the grass?", "Thank you."):
        recorded = renderer.record(rendered, data.draw(ids))
        assume("</think>" not in recorded.message.text)  # what one of these templates does strip
        rendered = renderer.render([*recorded.messages, Message.user(word)], recorded)
        assert rendered.extended, rendered.reason
        assert rendered.prompt_ids[: recorded.ids.size].tolist() == recorded.ids.tolist()
        assert word in tokenizer.decode(rendered.prompt_ids[recorded.ids.size :])
    assert [turn.message_index for turn in rendered.turns] == [1, 3]


@given(data=st.data())
def test_the_tiny_template_extends_any_sampled_ids(data: st.DataObject) -> None:
    renderer = TINY
    recorded = renderer.record(
        renderer.start([Message.system("Play."), Message.user("P _\n_ G")], [LOOKUP]),
        data.draw(st.lists(st.integers(0, 1023), max_size=40)),
    )
    extended = renderer.extend(recorded, [Message.tool("done")])
    assert extended.prompt_ids[: recorded.ids.size].tolist() == recorded.ids.tolist()


def test_ids_whose_text_encodes_differently_are_kept(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    renderer = Renderer(tokenizer)
    letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "the"]
    assert tokenizer.encode("the") != letters, (
        "the word must have a token of its own for this test to mean anything"
    )
    recorded = renderer.record(renderer.start([Message.user("hello")]), [*letters, tokenizer.eos_token_id])
    extended = renderer.extend(recorded, [Message.user("again")])
    start = recorded.rendered.prompt_ids.size
    assert extended.prompt_ids[start : start + 3].tolist() == letters


# Without "plain" over "metaspace": there a sampled turn and what follows it are one word, and would merge.
@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n in EXTENDABLE for k in KINDS if (n, k) != ("plain", "metaspace")]
)
def test_exact_equals_template_history_for_canonical_actions(
    tokenizer_of: Callable[..., Any], name: str, kind: str
) -> None:
    tokenizer = tokenizer_of(name, kind)
    exact, afresh = Renderer(tokenizer), Renderer(tokenizer, history="template")
    rendered = exact.start([Message.user("What color is the sky?")])
    # An answer as this family's template writes it: some put a space before it.
    answer = " The sky is blue" if name == "mistral" else "The sky is blue"
    for word in ("And the grass?", "Why? Tell me.", "Thank you."):
        action = [*exact.template.encode_after(answer), *exact.end_ids[:1]]
        recorded = exact.record(rendered, action)
        rendered = exact.render([*recorded.messages, Message.user(word)], recorded)
        same = afresh.start(rendered.messages)
        assert rendered.extended
        assert rendered.prompt_ids.tolist() == same.prompt_ids.tolist()
        assert same.text == rendered.text


@pytest.mark.parametrize("name", ["chatml", "llama", "gemma", "mistral", "think_opening"])
def test_a_closing_token_is_written_once_whether_sampled_or_not(
    tokenizer_of: Callable[..., Any], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    renderer = Renderer(tokenizer)
    rendered = renderer.start([Message.user("hello")])
    words = renderer.template.encode_after("blue")
    end = renderer.end_ids[0]
    ended = renderer.extend(renderer.record(rendered, [*words, end]), [Message.user("again")])
    cut_off = renderer.extend(renderer.record(rendered, words), [Message.user("again")])
    assert ended.prompt_ids.tolist() == cut_off.prompt_ids.tolist()


def test_a_sampled_newline_after_the_end_token_is_not_written_again(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    renderer = Renderer(tokenizer)
    rendered = renderer.start([Message.user("hello")])
    closing = renderer.template.encode_after("<|im_end|>\n")
    assert len(closing) == 2
    both = renderer.extend(renderer.record(rendered, [7, *closing]), [Message.user("again")])
    one = renderer.extend(renderer.record(rendered, [7, closing[0]]), [Message.user("again")])
    assert both.prompt_ids.tolist() == one.prompt_ids.tolist()


def test_an_end_token_the_template_does_not_use_stays_and_the_turn_is_closed(
    tokenizer_of: Callable[..., Any],
) -> None:
    tokenizer = tokenizer_of("llama")
    renderer = Renderer(tokenizer)
    end_of_turn, end_of_text = renderer.end_ids
    rendered = renderer.start([Message.user("hello")])
    recorded = renderer.record(rendered, [*renderer.template.encode_after("blue"), end_of_text])
    after = renderer.extend(recorded, [Message.user("again")]).prompt_ids[recorded.ids.size :]
    assert recorded.message.text == "blue"
    assert after[0] == end_of_turn


def test_nothing_merges_across_the_end_of_a_sampled_turn(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("plain")
    renderer = Renderer(tokenizer)
    ends = [tokenizer.encode(text) for text in (".", "\n\n", ".\n\n")]
    assert [len(ids) for ids in ends] == [1, 1, 1], "this tokenizer must merge a stop with what follows"
    action = [*tokenizer.encode("blue"), *ends[0]]
    recorded = renderer.record(renderer.start([Message.user("hello")]), action)
    extended = renderer.extend(recorded, [Message.user("again")])
    assert extended.prompt_ids[recorded.ids.size :].tolist()[:1] == ends[1]
    afresh = Renderer(tokenizer, history="template").start(extended.messages)
    assert afresh.prompt_ids.tolist() != extended.prompt_ids.tolist()
    assert tokenizer.decode(afresh.prompt_ids) == tokenizer.decode(extended.prompt_ids)


def test_no_word_mark_is_put_at_the_beginning_of_an_appended_text(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("plain", "metaspace")
    renderer = Renderer(tokenizer)
    action = renderer.template.encode_after("hello there")
    recorded = renderer.record(renderer.start([Message.user("hello")]), action)
    extended = renderer.extend(recorded, [Message.user("again")])
    text = tokenizer.decode(extended.prompt_ids)
    assert text == "User:\nhello\n\nAssistant:\nhello there\n\nUser:\nagain\n\nAssistant:\n"


def test_the_beginning_token_is_written_exactly_once(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("llama")
    assert tokenizer.encode("hello")[0] == tokenizer.bos_token_id, "the tokenizer adds one by itself"
    renderer = Renderer(tokenizer)
    recorded = renderer.record(renderer.start([Message.user("hello")]), [9])
    extended = renderer.extend(recorded, [Message.user("again")])
    assert (extended.prompt_ids == tokenizer.bos_token_id).sum() == 1
    assert extended.prompt_ids[0] == tokenizer.bos_token_id


def test_what_the_prompt_opened_belongs_to_the_turn(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("think_opening")
    renderer = Renderer(tokenizer)
    rendered = renderer.start([Message.user("hello")])
    assert rendered.text.endswith("<|im_start|>assistant\n<think>\n")
    recorded = renderer.record(rendered, renderer.template.encode_after("hm</think>hello"))
    assert recorded.message.text == "<think>\nhm</think>hello"
    extended = renderer.extend(recorded, [Message.user("again")])
    assert tokenizer.decode(extended.prompt_ids) == extended.text
    assert extended.text.count("<think>") == 2


def test_stripped_thinking_restarts_the_prompt_and_is_counted(tokenizer_of: Callable[..., Any]) -> None:
    renderer = Renderer(tokenizer_of("think_stripping"))
    rendered = renderer.start([Message.user("hello")])
    action = renderer.template.encode_after("<think>\nhm\n</think>\n\nblue")
    recorded = renderer.record(rendered, [*action, renderer.end_ids[0]])
    messages = [*recorded.messages, Message.user("again")]
    restarted = renderer.render(messages, recorded)
    assert not restarted.extended
    assert "rewrites the sampled turn" in restarted.reason
    assert "<think>" not in restarted.text
    assert renderer.counts.restarts == {RestartKind.TEMPLATE_REWRITES: 1}
    assert (renderer.counts.num_started, renderer.counts.num_extended) == (1, 0)
    with pytest.raises(RenderError, match='history="template"'):
        renderer.extend(recorded, [Message.user("again")])


def test_thinking_survives_tool_results_and_is_dropped_only_by_the_next_question(
    tokenizer_of: Callable[..., Any],
) -> None:
    renderer = Renderer(tokenizer_of("think_stripping"))
    rendered = renderer.start([Message.user("hello")])
    action = renderer.template.encode_after("<think>\nhm\n</think>\n\nlook it up")
    recorded = renderer.record(rendered, action)
    answered = renderer.render([*recorded.messages, Message.tool("blue")], recorded)
    assert answered.extended
    again = renderer.record(answered, renderer.template.encode_after("blue"))
    asked = renderer.render([*again.messages, Message.user("sure?")], again)
    assert not asked.extended
    assert "precedes the sampled turn" in asked.reason


def test_tool_calls_and_grouped_results_extend_as_the_template_writes_them(
    tokenizer_of: Callable[..., Any],
) -> None:
    tokenizer = tokenizer_of("grouped_tools")
    renderer = Renderer(tokenizer)
    calls = [ToolCall("lookup", {"key": "sky"}, "a"), ToolCall("lookup", {"key": "grass"}, "b")]
    message = Message.assistant("Let me see.", calls)
    rendered = renderer.start([Message.system("Be kind."), Message.user("Colors?")], [LOOKUP])
    written = renderer.template.render_text((*rendered.messages, message), [LOOKUP], prompt=False)
    action = renderer.template.encode_after(written[len(rendered.text) : -len("<|im_end|>\n")])
    recorded = renderer.record(rendered, [*action, renderer.end_ids[0]], message)
    extended = renderer.extend(recorded, [Message.tool("blue", calls[0]), Message.tool("green", calls[1])])
    assert extended.prompt_ids.tolist() == renderer.start(extended.messages, [LOOKUP]).prompt_ids.tolist()
    assert extended.text.count("<|im_start|>user\n<tool_response>") == 1
    assert extended.text.count("<tool_response>") == 2


def test_a_template_that_wants_real_calls_before_results_is_extended(
    tokenizer_of: Callable[..., Any],
) -> None:
    tokenizer = tokenizer_of("mistral")
    renderer = Renderer(tokenizer)
    call = ToolCall("lookup", {"key": "sky"}, "call00001")
    message = Message.assistant("", [call])
    rendered = renderer.start([Message.user("Color?")], [LOOKUP])
    written = renderer.template.render_text((*rendered.messages, message), [LOOKUP], prompt=False)
    action = renderer.template.encode_after(written[len(rendered.text) :])
    assert action[-1] == tokenizer.eos_token_id
    recorded = renderer.record(rendered, action, message)
    extended = renderer.extend(recorded, [Message.tool("blue", call)])
    assert extended.prompt_ids.tolist() == renderer.start(extended.messages, [LOOKUP]).prompt_ids.tolist()
    follow_up = renderer.record(extended, renderer.template.encode_after(" Blue."))
    moved = renderer.render([*follow_up.messages, Message.user("Sure?")], follow_up, [LOOKUP])
    assert not moved.extended, "this template moves the list of tools to the last question"


def test_a_call_spelled_in_another_way_than_the_template_keeps_its_ids(
    tokenizer_of: Callable[..., Any],
) -> None:
    renderer = Renderer(tokenizer_of("grouped_tools"))
    rendered = renderer.start([Message.user("Color?")], [LOOKUP])
    spelled = '<tool_call>{"arguments":{"key":"sky"},"name":"lookup"}</tool_call>'
    action = renderer.template.encode_after(spelled)
    call = ToolCall("lookup", {"key": "sky"})
    recorded = renderer.record(rendered, action, Message.assistant("", [call]))
    extended = renderer.extend(recorded, [Message.tool("blue", call)])
    assert np.array_equal(extended.prompt_ids[: recorded.ids.size], recorded.ids)
    assert spelled in renderer.template.decode(extended.prompt_ids.tolist())
