"""The quick way gives what the slow way gives: same ids, same text, same refusals, for any contents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from stepwell.core.errors import RenderError
from stepwell.core.tools import ToolSchema
from stepwell.rendering import Conversation, Message, Renderer, line_cuts
from stepwell.rendering.template import ChatTemplate
from stepwell.rendering.template_skeleton import SkeletonCache, find_plain_roles
from stepwell.rendering.tiny import build_tokenizer

LOOKUP = ToolSchema("lookup", "Find a fact")
KINDS = ("bytes", "metaspace")
MOULDED = ("tiny", "chatml", "grouped_tools", "llama", "gemma", "mistral", "think_opening", "plain")
NAMES = (*MOULDED, "think_stripping")
PROMPT = ("user", "assistant", "user")

BLANKS = (" two  blanks ", "\n", "P__O\n_O_G")
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]", "</s>", "<bos>")
LOOKED_FOR = ("<think>", "</think>", "<tool_response>", "Stepwell0mark", "Stepwellmark", "{{ x }}", "é☃")
words = st.sampled_from(["hello", *BLANKS, *SPECIALS, *LOOKED_FOR])
contents = st.one_of(st.lists(words, max_size=4).map("".join), st.text(max_size=12))
new_messages = st.one_of(
    st.tuples(contents.map(Message.user)),
    st.tuples(contents.map(Message.tool)),
    st.tuples(contents.map(Message.tool), contents.map(Message.user)),
)
Turns = Sequence[tuple[list[int], Sequence[Message]]]


def slow(renderer: Renderer) -> Renderer:
    """The same renderer without skeletons, encoding every text as a whole."""
    renderer._skeletons._is_steady = False
    pieces = renderer.template._pieces
    pieces._cut, pieces._cuts, pieces._has_line_cuts = None, (), False
    return renderer


@functools.cache
def both_ways(make: Callable[..., Any], name: str, kind: str, history: str) -> tuple[Renderer, Renderer]:
    tokenizer = build_tokenizer() if name == "tiny" else make(name, kind)
    return Renderer(tokenizer, history), slow(Renderer(tokenizer, history))  # type: ignore[arg-type]


def told(renderer: Renderer, talk: list[Message], turns: Turns) -> list[Any]:
    """Everything that can be seen of a conversation, its failure included."""
    seen: list[Any] = []
    try:
        conversation = Conversation(renderer, talk)
        for ids, new in turns:
            seen.append((conversation.prompt.prompt_ids.tolist(), conversation.prompt.text))
            seen.append(conversation.record_action(ids))
            prompt = conversation.add(*new)
            seen.append((prompt.extended, prompt.reason, prompt.turns, prompt.messages))
        seen.append((conversation.prompt.prompt_ids.tolist(), conversation.prompt.text))
    except RenderError as error:
        seen.append(str(error))
    return seen


@pytest.mark.parametrize("history", ["exact", "template"])
@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n in NAMES for k in KINDS if (n, k) != ("tiny", "metaspace")]
)
@settings(max_examples=examples(20))
@given(data=st.data())
def test_both_ways_agree_on_every_conversation(
    tokenizer_of: Callable[..., Any], name: str, kind: str, history: str, data: st.DataObject
) -> None:
    quick, reference = both_ways(tokenizer_of, name, kind, history)
    ids = st.lists(st.integers(0, len(quick.template.tokenizer) - 1), max_size=6)  # type: ignore[arg-type]
    talk = [Message.system(data.draw(contents))] if data.draw(st.booleans()) else []
    talk.append(Message.user(data.draw(contents)))
    turns = data.draw(st.lists(st.tuples(ids, new_messages), min_size=1, max_size=3))
    expected = told(reference, talk, turns)
    for _ in range(2):  # roles get their skeleton the second time
        assert told(quick, talk, turns) == expected


@pytest.mark.parametrize("name", MOULDED)
def test_common_templates_have_skeletons(tokenizer_of: Callable[..., Any], name: str) -> None:
    template = ChatTemplate(build_tokenizer() if name == "tiny" else tokenizer_of(name))
    skeletons = SkeletonCache(template)
    assert skeletons.get_skeleton(PROMPT) is None, "a row of roles seen once is not worth a skeleton"
    skeleton = skeletons.get_skeleton(PROMPT)
    assert skeleton is not None
    words = [" What? ", "Blue.\n", "\tAnd <b>grass</b>?"]
    messages = [Message(role, text) for role, text in zip(PROMPT, words, strict=True)]  # type: ignore[arg-type]
    assert skeleton.fill(words) == template.render_text(messages, prompt=True)


def with_content(expression: str) -> str:
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n" + expression + "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


@pytest.mark.parametrize(
    "expression",
    [
        "{{ m.content | upper }}",
        "{{ m.content | replace('secret', '***') }}",
        "{{ m.content | tojson }}",
        "{{ m.content | e }}",
        "{{ m.content | truncate(40) }}",
        "{{ m.content.split('</think>')[-1] }}",
        "{% if 'secret' in m.content %}!{% endif %}{{ m.content }}",
        "{% if m.content.startswith('secret') %}!{% endif %}{{ m.content }}",
        "{% if m.content.endswith('secret') %}!{% endif %}{{ m.content }}",
        "{% if m.content == 'secret' %}!{% endif %}{{ m.content }}",
        "{% if m.content | length > 1000 %}!{% endif %}{{ m.content }}",
        "{{ strftime_now('%d %b') }}{{ m.content }}",
        "{{ m.content }}{{ m.content }}",
        "{{ [1, 2, 3] | random }}{{ m.content }}",
    ],
)
def test_templates_that_look_at_contents_or_the_clock_get_no_skeleton(expression: str) -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = with_content(expression)
    skeletons = SkeletonCache(ChatTemplate(tokenizer))
    assert skeletons.get_skeleton(PROMPT) is skeletons.get_skeleton(PROMPT) is None


def test_a_template_that_strips_thinking_gets_no_mould_where_it_would_strip(
    tokenizer_of: Callable[..., Any],
) -> None:
    skeletons = SkeletonCache(ChatTemplate(tokenizer_of("think_stripping")))
    assert skeletons.get_skeleton(PROMPT) is skeletons.get_skeleton(PROMPT) is None
    assert skeletons.get_skeleton(("user",)) is None
    assert skeletons.get_skeleton(("user",)) is not None


def test_a_template_that_counts_turns_is_filled_with_the_right_counts() -> None:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = with_content(
        "{% if m.role == 'user' %}{{ loop.index }}: {% endif %}{{ m.content | trim }}"
    )
    quick, reference = Renderer(tokenizer), slow(Renderer(tokenizer))
    turns = [([9], [Message.user(" next ")])] * 4
    for _ in range(3):
        assert told(quick, [Message.user("go")], turns) == told(reference, [Message.user("go")], turns)
    assert quick._skeletons.get_skeleton(PROMPT) is not None


def test_tools_have_moulds_of_their_own() -> None:
    tokenizer = build_tokenizer()
    quick, reference = Renderer(tokenizer), slow(Renderer(tokenizer))
    for _ in range(3):
        for tools in ((), (LOOKUP,), (ToolSchema("other"),)):
            texts = [r.start([Message.user("go")], tools).text for r in (quick, reference)]
            assert texts[0] == texts[1]
            assert all(tool.name in texts[0] for tool in tools)


def test_messages_with_more_than_text_go_the_slow_way() -> None:
    assert find_plain_roles([Message.user("go"), Message.tool("done")]) == ("user", "tool")
    assert find_plain_roles([Message.user(" \n")]) is None
    assert find_plain_roles([Message("tool", "done", name="lookup")]) is None


def test_the_template_is_not_run_for_roles_seen_before() -> None:
    tokenizer = build_tokenizer()
    renderer = Renderer(tokenizer)
    turns = [([9], [Message.user("next")])] * 5
    for _ in range(2):
        told(renderer, [Message.system("Play."), Message.user("go")], turns)
    runs = []
    original = tokenizer.apply_chat_template
    tokenizer.apply_chat_template = lambda *a, **k: runs.append(1) or original(*a, **k)
    told(renderer, [Message.system("Play."), Message.user("another board")], turns)
    assert runs == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@given(text=contents)
def test_pieces_encode_like_the_whole(
    tokenizer_of: Callable[..., Any], name: str, kind: str, text: str
) -> None:
    quick, _ = both_ways(tokenizer_of, name, "bytes" if name == "tiny" else kind, "template")
    whole = quick.template.tokenizer.encode(text, add_special_tokens=False)
    assert quick.template.encode(text) == whole


LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["go desk", "1. take cup 2", "You: nothing", "", " ", "it's:", "x ", " y", "\r", "é", "…"]
        ),
        st.text("aZ9 .:'\n\t\r\x1c\u2028é", max_size=12),
    ),
    max_size=12,
).map("\n".join)
PATTERNS = {
    "qwen": line_cuts._RULES[0],
    "llama": line_cuts._RULES[1],
    "tiny": line_cuts._RULES[2],
}


@functools.cache
def make_word_tokenizer(kind: str) -> Any:
    """Byte pairs, merged whatever they are inside a word: two words that should be one are seen."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    if kind == "gpt2":
        digits = pre_tokenizers.Digits(individual_digits=True)
        split: list[Any] = [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        split = [
            pre_tokenizers.Split(Regex(PATTERNS[kind]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    core.pre_tokenizer = pre_tokenizers.Sequence(split)
    seen = ["go desk\n1. take cup 2\nYou: nothing\n\nx \n y:\n\n\nit's:\n  \n"] * 50
    core.train_from_iterator(
        seen,
        trainers.BpeTrainer(
            vocab_size=600,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|im_start|>", "<|im_end|>"],
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


@pytest.mark.parametrize("kind", ["gpt2", *PATTERNS])
@given(text=LINES)
def test_lines_encode_like_the_whole_text(kind: str, text: str) -> None:
    tokenizer = make_word_tokenizer(kind)
    assert line_cuts.can_encode_lines_alone(tokenizer)
    alone = [
        token
        for line in line_cuts.LINE_END.split(text)
        for token in tokenizer.encode(line, add_special_tokens=False)
    ]
    assert alone == tokenizer.encode(text, add_special_tokens=False)


def test_lines_are_not_cut_where_the_tokenizer_could_look_across_them() -> None:
    from tokenizers import AddedToken, normalizers, pre_tokenizers

    assert build_tokenizer() is not None and line_cuts.can_encode_lines_alone(build_tokenizer())
    for change in ("normalizer", "blanks", "token", "rule"):
        tokenizer = build_tokenizer()
        if change == "normalizer":
            tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
        elif change == "rule":
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(use_regex=False)
        else:
            text = AddedToken("|", rstrip=True) if change == "blanks" else AddedToken("a\nb")
            tokenizer.add_tokens([text])
        assert not line_cuts.can_encode_lines_alone(tokenizer), change


def test_a_token_that_swallows_blanks_or_overlaps_another_is_not_cut_at() -> None:
    from tokenizers import AddedToken

    for extra in (AddedToken("<|im_end|>", rstrip=True), AddedToken("x<|im_", special=True)):
        tokenizer = build_tokenizer()
        tokenizer.add_tokens([extra])
        template = ChatTemplate(tokenizer)
        text = "x<|im_end|> \n<|im_start|>user x<|im_start|> y"
        assert template.encode(text) == tokenizer.encode(text, add_special_tokens=False)
        assert "<|im_end|>" not in template._pieces._cuts


def test_a_tokenizer_left_cutting_by_someone_else_still_cuts_nothing() -> None:
    tokenizer = build_tokenizer()
    renderer = Renderer(tokenizer)
    renderer.start([Message.user("one two three")])
    tokenizer.backend_tokenizer.enable_truncation(max_length=5)
    rendered = renderer.start([Message.user("four five six seven eight nine")])
    assert renderer.template.decode(rendered.prompt_ids.tolist()) == rendered.text
