"""Prompts, limits, refusals, and matching an incoming history with what was recorded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepwell.core.errors import ContextLengthError, InputError, RenderError
from stepwell.core.tools import ToolCall, ToolSchema
from stepwell.rendering import (
    Conversation,
    ImagePart,
    Message,
    RecordedAction,
    Renderer,
    RestartKind,
    TextPart,
    fold_system,
    probe_template,
)
from stepwell.rendering.tiny import build_tokenizer

LOOKUP = ToolSchema("lookup", "Find a fact")


@pytest.fixture
def renderer(tokenizer_of: Callable[..., Any]) -> Renderer:
    return Renderer(tokenizer_of("chatml"))


def recorded_turn(renderer: Renderer, words: str = "blue") -> RecordedAction:
    rendered = renderer.start([Message.system("Be kind."), Message.user("Color?")])
    return renderer.record(rendered, [*renderer.template.encode_after(words), renderer.end_ids[0]])


def test_importing_rendering_loads_neither_torch_nor_transformers() -> None:
    heavy = "('torch', 'transformers', 'tokenizers')"
    code = f"import sys, stepwell.rendering; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
    )


@pytest.mark.parametrize("name", ["chatml", "grouped_tools", "llama", "gemma", "mistral", "plain"])
def test_a_first_prompt_is_what_the_tokenizer_itself_would_give(
    tokenizer_of: Callable[..., Any], name: str
) -> None:
    tokenizer = tokenizer_of(name)
    messages = [Message.user("hello"), Message.assistant("blue"), Message.user("again")]
    expected = tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.text} for m in messages], add_generation_prompt=True, return_dict=False
    )
    rendered = Renderer(tokenizer).start(messages)
    assert rendered.prompt_ids.tolist() == expected
    assert rendered.prompt_ids.dtype == np.int32
    assert rendered.state.prompt_ids.tolist() == expected


def test_a_default_system_prompt_is_written_once_and_kept(renderer: Renderer) -> None:
    recorded = renderer.record(renderer.start([Message.user("hello")]), [9])
    extended = renderer.extend(recorded, [Message.user("again")])
    assert extended.text.count("You are a small helper.") == 1
    assert "Be kind." not in extended.text


def test_a_limit_saved_in_the_tokenizer_cuts_nothing() -> None:
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(max_length=5)
    assert Renderer(tokenizer).start([Message.user("one two three four five six")]).prompt_ids.size > 10


def test_template_history_renders_every_turn_afresh(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("think_stripping")
    renderer = Renderer(tokenizer, history="template")
    recorded = renderer.record(
        renderer.start([Message.user("hello")]), renderer.template.encode_after("<think>hm</think>blue")
    )
    rendered = renderer.render([*recorded.messages, Message.user("again")], recorded)
    assert not rendered.extended
    assert rendered.refusal is not None and rendered.refusal.kind == RestartKind.AFRESH
    assert rendered.prompt_ids.tolist() == tokenizer.encode(rendered.text)
    assert renderer.counts.restarts.total() == 0


def test_template_history_says_when_it_happens_to_extend(tokenizer_of: Callable[..., Any]) -> None:
    renderer = Renderer(tokenizer_of("chatml"), history="template")
    recorded = recorded_turn(renderer)
    rendered = renderer.render([*recorded.messages, Message.user("again")], recorded)
    assert rendered.extended and rendered.reason == ""


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda m: [Message.system("Be brief."), *m[1:]], RestartKind.HISTORY_CHANGED),
        (lambda m: m[1:], RestartKind.HISTORY_CHANGED),
        (lambda m: m[:3], RestartKind.HISTORY_CHANGED),
        (lambda m: [*m[:2], Message.assistant("green"), *m[3:]], RestartKind.TURN_CHANGED),
        (lambda m: [*m[:2], Message.user("blue"), *m[3:]], RestartKind.TURN_CHANGED),
    ],
)
def test_a_history_that_was_rewritten_starts_a_new_prompt(
    renderer: Renderer, change: Callable[[list[Message]], list[Message]], kind: RestartKind
) -> None:
    recorded = recorded_turn(renderer)
    rendered = renderer.render(change([*recorded.messages, Message.user("again")]), recorded)
    assert not rendered.extended and rendered.turns == ()
    assert rendered.refusal is not None and rendered.refusal.kind == kind
    assert rendered.prompt_ids.tolist() == renderer.template.encode(rendered.text)
    assert renderer.counts.restarts == {kind: 1}


def test_changed_tools_start_a_new_prompt() -> None:
    renderer = Renderer(build_tokenizer())
    recorded = recorded_turn(renderer)
    rendered = renderer.render([*recorded.messages, Message.user("again")], recorded, [LOOKUP])
    assert rendered.refusal is not None and rendered.refusal.kind == RestartKind.TOOLS_CHANGED


def test_a_turn_is_recognised_as_a_client_sends_it_back(tokenizer_of: Callable[..., Any]) -> None:
    renderer = Renderer(tokenizer_of("think_opening"))
    rendered = renderer.start([Message.user("hello")])
    recorded = renderer.record(rendered, renderer.template.encode_after("hm</think>blue\n"))
    for sent in ("hm</think>blue", "<think>\nhm</think>blue\n"):
        messages = [Message.user("hello"), Message.assistant(sent), Message.user("again")]
        extended = renderer.render(messages, recorded)
        assert extended.extended
        assert extended.messages[1] == recorded.message


def test_tool_calls_are_recognised_by_name_and_arguments_not_by_id() -> None:
    renderer = Renderer(build_tokenizer())
    call = ToolCall("lookup", {"key": "sky"}, "ours")
    rendered = renderer.start([Message.user("Color?")], [LOOKUP])
    recorded = renderer.record(rendered, [9, 8], Message.assistant("", [call]))
    theirs = Message.assistant("", [replace(call, id="theirs")])
    others = Message.assistant("", [replace(call, arguments={"key": "sea"})])
    answer = Message.tool("blue", replace(call, id="theirs"))
    assert renderer.render([rendered.messages[0], theirs, answer], recorded, [LOOKUP]).extended
    assert not renderer.render([rendered.messages[0], others, answer], recorded, [LOOKUP]).extended


def test_a_prompt_over_the_context_names_tokens_limit_and_fix(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    size = Renderer(tokenizer).start([Message.user("hello")]).prompt_ids.size
    assert Renderer(tokenizer, context_length=size + 1).start([Message.user("hello")]).prompt_ids.size == size
    with pytest.raises(ContextLengthError, match=rf"{size} tokens.*context length is {size}: shorten"):
        Renderer(tokenizer, context_length=size).start([Message.user("hello")])
    with pytest.raises(ContextLengthError, match="64 must stay free"):
        Renderer(tokenizer, context_length=size + 10, room=64).start([Message.user("hello")])


def test_an_extension_over_the_context_is_refused_too(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    size = Renderer(tokenizer).start([Message.user("hello")]).prompt_ids.size
    renderer = Renderer(tokenizer, context_length=size + 5)
    recorded = renderer.record(renderer.start([Message.user("hello")]), [9] * 4)
    with pytest.raises(ContextLengthError):
        renderer.render([*recorded.messages, Message.user("again")], recorded)
    assert renderer.counts.num_extended == 0


def test_a_template_that_forgets_turns_is_refused_before_training(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("forgetful")
    with pytest.raises(RenderError, match=r'precedes the sampled turn.*Use history="template"'):
        Renderer(tokenizer)
    report = probe_template(tokenizer)
    assert not report.extends and not report.extends_thinking
    assert not Renderer(tokenizer, history="template").can_extend


def test_the_report_says_what_a_run_would_need(tokenizer_of: Callable[..., Any]) -> None:
    stripping = probe_template(tokenizer_of("think_stripping"))
    stripping.require_extension()
    with pytest.raises(RenderError, match=r"cannot extend a conversation with thinking"):
        stripping.require_extension(thinking=True)
    moving = probe_template(tokenizer_of("mistral"))
    assert moving.extends_thinking and not moving.extends_tools
    with pytest.raises(RenderError, match=r"conversation with tools"):
        moving.require_extension(tools=True)
    tiny = probe_template(build_tokenizer())
    tiny.require_extension(thinking=True, tools=True)
    assert tiny.problems == ()


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("chatml", ["<|im_end|>"]),
        ("llama", ["<|eot_id|>", "<|end_of_text|>"]),
        ("mistral", ["</s>"]),
        ("plain", []),
    ],
)
def test_end_ids_are_the_turns_own_then_the_tokenizers(
    tokenizer_of: Callable[..., Any], name: str, ends: list[str]
) -> None:
    tokenizer = tokenizer_of(name)
    assert list(probe_template(tokenizer).end_ids) == tokenizer.convert_tokens_to_ids(ends)


def test_what_a_template_would_leave_out_is_refused(tokenizer_of: Callable[..., Any]) -> None:
    with pytest.raises(RenderError, match="tools: the template lists no tools; describe them"):
        Renderer(tokenizer_of("chatml")).start([Message.user("hello")], [LOOKUP])
    system = [Message.system("Be kind."), Message.user("hello")]
    gemma = Renderer(tokenizer_of("gemma"))
    with pytest.raises(RenderError, match=r"System role not supported; fold_system"):
        gemma.start(system)
    assert "Be kind.\n\nhello" in gemma.start(fold_system(system)).text


def test_a_silently_dropped_system_message_is_noticed(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    assert not probe_template(tokenizer).system
    with pytest.raises(RenderError, match="leaves out system messages"):
        Renderer(tokenizer).start([Message.system("Be kind."), Message.user("hello")])


def test_dropped_tool_calls_and_results_are_noticed(tokenizer_of: Callable[..., Any]) -> None:
    call = ToolCall("lookup", {"key": "sky"})
    with pytest.raises(RenderError, match="tool calls: the template leaves out tool calls"):
        Renderer(tokenizer_of("chatml")).start([Message.user("hello"), Message.assistant("", [call])])
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    renderer = Renderer(tokenizer)
    with pytest.raises(RenderError, match="leaves out tool results"):
        renderer.extend(renderer.record(renderer.start([Message.user("hello")]), [9]), [Message.tool("blue")])


def test_a_tokenizer_without_a_template_is_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(RenderError, match="no chat template"):
        Renderer(tokenizer)


def test_a_template_that_writes_answers_twice_is_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
    with pytest.raises(RenderError, match="2 times, not once"):
        probe_template(tokenizer)


def test_an_image_is_refused_clearly_and_text_parts_are_joined(renderer: Renderer) -> None:
    parts = (TextPart("look "), TextPart("here"))
    assert Message("user", parts).text == "look here"
    with pytest.raises(RenderError, match=r"holds an image \(abc\).*text only"):
        renderer.start([Message("user", (*parts, ImagePart("abc")))])


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Message("robot", "x"), r"message\.role is 'robot'"),  # type: ignore[arg-type]
        (lambda: Message("user", None), r"message\.content is NoneType"),  # type: ignore[arg-type]
        (lambda: Message("user", "x", (ToolCall("a", {}),)), r"message\.tool_calls on a user"),
        (lambda: Message("user", "x", tool_call_id="a"), r"message\.tool_call_id on a user"),
        (lambda: fold_system([Message.system("x")]), "a user message must follow"),
    ],
)
def test_a_wrong_message_names_its_field(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        make()


def test_wrong_settings_and_empty_messages_are_refused(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    with pytest.raises(InputError, match="history is 'exakt'"):
        Renderer(tokenizer, history="exakt")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="context_length 0"):
        Renderer(tokenizer, context_length=0)
    renderer = Renderer(tokenizer)
    with pytest.raises(InputError, match="messages is empty"):
        renderer.start([])
    with pytest.raises(InputError, match="new messages are empty"):
        renderer.extend(recorded_turn(renderer), [])
    with pytest.raises(InputError, match="action_ids"):
        renderer.record(renderer.start([Message.user("hello")]), [1.5])  # type: ignore[list-item]


def test_a_message_that_holds_the_mark_itself_is_rendered_faithfully(renderer: Renderer) -> None:
    rendered = renderer.start([Message.user("Stepwellmark")])
    recorded = renderer.record(rendered, renderer.template.encode_after("Stepwellmarkq"))
    extended = renderer.extend(recorded, [Message.user("Stepwellmarkqq")])
    assert extended.text.count("Stepwellmark") == 3
    assert renderer.template.decode(extended.prompt_ids.tolist()) == extended.text


def test_template_options_reach_the_template() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}{% if short %}Brief:{% endif %}"
    )
    renderer = Renderer(tokenizer, "template", template_options={"short": True})
    assert renderer.start([Message.user("a")]).text == "a<|im_end|>Brief:"


def test_a_conversation_keeps_its_memory_and_counts_restarts(renderer: Renderer) -> None:
    conversation = Conversation(renderer, [Message.user("Color?")])
    first = conversation.state.prompt_ids
    assert (
        conversation.record_action([*renderer.template.encode_after("blue"), renderer.end_ids[0]]).text
        == "blue"
    )
    with pytest.raises(InputError, match=r"call add"):
        _ = conversation.state
    conversation.add(Message.user("Sure?"))
    assert conversation.state.prompt_ids[: first.size].tolist() == first.tolist()
    assert conversation.num_restarts == 0
    conversation.record_action([9])
    conversation.rewrite([Message.user("In short: blue."), Message.user("Sure?")])
    assert conversation.num_restarts == 1
    assert "message 0 (user)" in conversation.restart_reasons[0]
    assert [m.text for m in conversation.messages] == ["In short: blue.", "Sure?"]


def test_a_conversation_refuses_turns_out_of_order(renderer: Renderer) -> None:
    conversation = Conversation(renderer, [Message.user("Color?")])
    with pytest.raises(InputError, match=r"call record_action"):
        conversation.add(Message.user("Sure?"))
    conversation.record_action([9])
    with pytest.raises(InputError, match="two actions in a row"):
        conversation.record_action([9])
