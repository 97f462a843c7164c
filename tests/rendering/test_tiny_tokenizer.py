"""The tiny models' tokenizer: any text round-trips, boards read the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import ModelError
from stepwell.rendering import Message, Renderer, load_tokenizer
from stepwell.rendering.tiny import TINY_CONTEXT, TINY_VOCAB_SIZE, build_tokenizer
from stepwell.rendering.tiny.vocabulary import BOARD_SYMBOLS, TAG_TOKENS, list_single_tokens

TOKENIZER = build_tokenizer()
SYMBOLS = "P_OG#X@$*.+0123456789|" + BOARD_SYMBOLS


def test_building_twice_gives_the_same_tokenizer() -> None:
    assert build_tokenizer().backend_tokenizer.to_str() == TOKENIZER.backend_tokenizer.to_str()
    assert len(TOKENIZER) == TINY_VOCAB_SIZE == 1024
    assert TOKENIZER.model_max_length == TINY_CONTEXT >= 2048


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert max(ids, default=0) < TINY_VOCAB_SIZE


def test_every_listed_word_is_one_token() -> None:
    words = [*list_single_tokens(), *TAG_TOKENS, "<|im_start|>", "<|im_end|>"]
    assert len(words) > 300
    assert [word for word in words if len(TOKENIZER.encode(word)) != 1] == []


@given(st.lists(st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=6), min_size=1, max_size=6))
@pytest.mark.parametrize("between", ["", " ", " | ", "\t"])
def test_a_cell_has_the_same_token_whatever_stands_beside_it(between: str, board: list[list[str]]) -> None:
    text = "\n".join(between.join(row) for row in board)
    assert TOKENIZER.encode(text) == [TOKENIZER.encode(letter)[0] for letter in text]


def test_action_words_are_one_token_with_and_without_a_space() -> None:
    for word in ("Up", "Down", "Left", "Right", "up", "down", "left", "right"):
        assert len(TOKENIZER.encode(f"<answer>{word}</answer>")) == 3
        assert len(TOKENIZER.encode(f"{word}, {word}")) == 3


def test_tags_stay_in_decoded_text_and_turn_tokens_do_not() -> None:
    ids = TOKENIZER.encode("<think>P</think><|im_end|>")
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think>P</think>"
    assert ids[-1] == TOKENIZER.eos_token_id


def test_the_template_writes_turns_as_documented() -> None:
    rendered = Renderer(TOKENIZER).start([Message.system("Go"), Message.user("P _ G")])
    assert rendered.text == (
        "<|im_start|>system\nGo<|im_end|>\n<|im_start|>user\nP _ G<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.prompt_ids.size == (3 + 1 + 2) + (3 + 5 + 2) + 3


def test_a_saved_tokenizer_opens_with_the_same_ids(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    opened = load_tokenizer(tmp_path)
    text = 'P _ O\n√ X 12 <think>Go Up</think> {"name": "move"} strange wörds<|im_end|>'
    assert opened.encode(text) == TOKENIZER.encode(text)
    assert opened.chat_template == TOKENIZER.chat_template
    assert (opened.eos_token_id, opened.pad_token_id) == (TOKENIZER.eos_token_id, TOKENIZER.pad_token_id)


def test_missing_and_damaged_tokenizers_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"holds no tokenizer \(tokenizer.json"):
        load_tokenizer(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(tmp_path)
    file.write_text('{"version": "1.0", "model": {"type": "BPE"}}')
    with pytest.raises(ModelError, match=r"cannot be opened .*; copy or save it again"):
        load_tokenizer(tmp_path)
