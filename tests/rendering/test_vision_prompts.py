"""Images in prompts: one run of tokens for each, in its place, also where a conversation goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepwell.core import ImageStore, InputError, RenderError
from stepwell.rendering import Conversation, ImagePart, Message, Renderer, TextPart, fold_system
from stepwell.rendering.tiny import build_tokenizer
from stepwell.rendering.vision.qwen import QwenFormat

MARKER = "<|image|>"
WITH_STRINGS = """
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else -%}
{%- for p in m.content %}{{ '<|image|>' if p.type == 'image' else p.text }}{% endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
PARTS_ALONE = """
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% for p in m.content if p.type == 'image' %}<|image|>{% endfor -%}
{%- for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
BLIND = WITH_STRINGS.replace("'<|image|>' if p.type == 'image' else p.text", "p.text")


def _tokenizer(template: str) -> Any:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [MARKER]})
    tokenizer.chat_template = template.strip("\n")
    return tokenizer


def _renderer(template: str, image_store: ImageStore, **options: Any) -> Renderer:
    tokenizer = _tokenizer(template)
    marker_id = tokenizer.convert_tokens_to_ids(MARKER)
    form = QwenFormat(MARKER, marker_id, {}, {"patch_size": 7, "merge_size": 2, "min_pixels": 196})
    return Renderer(tokenizer, image_format=form, image_store=image_store, **options)


@pytest.fixture
def shown() -> tuple[ImageStore, str, str]:
    """An image of four tokens and one of two."""
    image_store = ImageStore()
    large = image_store.add(np.full((28, 28, 3), 7, dtype=np.uint8))
    return image_store, large, image_store.add(np.full((14, 28, 3), 9, dtype=np.uint8))


@pytest.mark.parametrize("template", [WITH_STRINGS, PARTS_ALONE])
def test_every_image_becomes_its_run_and_the_rest_is_as_the_tokenizer_says(
    shown: tuple[ImageStore, str, str], template: str
) -> None:
    image_store, large, small = shown
    renderer = _renderer(template, image_store)
    messages = [
        Message.system("See."),
        Message.user([ImagePart(large), ImagePart(small), TextPart("What is there?")]),
    ]
    rendered = renderer.start(messages)
    marker_id = renderer.image_format.marker_id  # type: ignore[union-attr]
    text = rendered.text.replace(MARKER * 2, MARKER * 6)
    assert rendered.prompt_ids.tolist() == renderer.template.encode(text)
    spans = rendered.state.images
    assert [(span.image, span.length) for span in spans] == [(large, 4), (small, 2)]
    places = [i for span in spans for i in range(span.start, span.start + span.length)]
    assert np.flatnonzero(rendered.prompt_ids == marker_id).tolist() == places


@pytest.mark.parametrize("history", ["exact", "template"])
@pytest.mark.parametrize("template", [WITH_STRINGS, PARTS_ALONE])
def test_a_conversation_goes_on_from_its_exact_ids_with_images_in_later_turns(
    shown: tuple[ImageStore, str, str], template: str, history: Any
) -> None:
    image_store, large, small = shown
    renderer = _renderer(template, image_store, history=history)
    conversation = Conversation(renderer, [Message.user([ImagePart(large), TextPart("Go.")])])
    expected: list[int] = []
    for turn, then in enumerate(([ImagePart(small), TextPart("And now?")], [ImagePart(large)], "Text.")):
        state = conversation.state
        assert state.prompt_ids[: len(expected)].tolist() == expected
        assert len(state.images) == turn + 1
        action = [*renderer.template.encode("Up"), renderer.end_ids[0]]
        conversation.record_action(action)
        expected = [*state.prompt_ids.tolist(), *action]
        assert conversation.add(Message.user(then)).extended
    assert [span.image for span in conversation.state.images] == [large, small, large]
    whole = renderer.start(conversation.messages)
    assert whole.state == conversation.state, "the same as rendering the messages afresh"


def test_another_image_in_an_old_message_is_not_the_same_prompt(shown: tuple[ImageStore, str, str]) -> None:
    image_store, large, _ = shown
    other = image_store.add(np.full((28, 28, 3), 8, dtype=np.uint8))
    for history in ("exact", "template"):
        renderer = _renderer(WITH_STRINGS, image_store, history=history)
        recorded = renderer.record(
            renderer.start([Message.user([ImagePart(large)])]), [5, renderer.end_ids[0]]
        )
        messages = [Message.user([ImagePart(other)]), recorded.message, Message.user("Go.")]
        rendered = renderer.render(messages, recorded)
        assert not rendered.extended and rendered.state.images[0].image == other


def test_text_that_spells_the_marker_is_no_image(shown: tuple[ImageStore, str, str]) -> None:
    image_store, large, _ = shown
    renderer = _renderer(WITH_STRINGS, image_store)
    marker_id = renderer.image_format.marker_id  # type: ignore[union-attr]
    conversation = Conversation(renderer, [Message.user([TextPart(f"a {MARKER} b"), ImagePart(large)])])
    assert len(conversation.state.images) == 1
    assert "a < |image|> b" in conversation.prompt.text
    conversation.record_action([5, marker_id, 6, renderer.end_ids[0]])  # the model itself says it
    assert conversation.add(Message.user(MARKER)).extended
    assert len(conversation.state.images) == 1
    assert len(renderer.start(conversation.messages).state.images) == 1


def test_images_are_refused_where_they_have_no_place(shown: tuple[ImageStore, str, str]) -> None:
    image_store, large, _ = shown
    with pytest.raises(RenderError, match="writes two images as"):
        _renderer(BLIND, image_store)
    blind = Renderer(_tokenizer(WITH_STRINGS), image_store=image_store)
    with pytest.raises(RenderError, match="this renderer writes text only"):
        blind.start([Message.user([ImagePart(large)])])
    with pytest.raises(InputError, match="is unknown here"):
        _renderer(WITH_STRINGS, ImageStore()).start([Message.user([ImagePart(large)])])


def test_a_system_message_is_folded_in_front_of_images() -> None:
    (folded,) = fold_system([Message.system("Be kind."), Message.user([ImagePart("x"), TextPart("Go.")])])
    assert folded.content == (TextPart("Be kind.\n\n"), ImagePart("x"), TextPart("Go."))
