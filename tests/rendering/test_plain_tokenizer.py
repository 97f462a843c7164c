"""A tokenizer read without transformers gives the same ids and texts, or steps aside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from stepwell.core import RenderError
from stepwell.policies import resolve_model
from stepwell.rendering import Message, Renderer, load_tokenizer
from stepwell.rendering.plain_tokenizer import read_plain_tokenizer
from stepwell.rendering.template import ChatTemplate

TEXTS = (
    "",
    "Hello there.",
    " two  spaces\n\tand a tab",
    "é… 你好 🙂",
    "<|im_start|>user\nUp<|im_end|>",
    "Up||Left",
)
TALK = (
    Message.system("You walk."),
    Message.user("Where to? <|im_end|> {{ braces }}"),
    Message.assistant("<answer>Up</answer>"),
    Message.user("On."),
)


@pytest.mark.parametrize("model", ["tiny-0.3m", "tiny-vlm-0.5m"])
def test_ids_and_prompts_are_those_of_transformers(model: str) -> None:
    directory = resolve_model(model)
    plain, full = read_plain_tokenizer(directory), load_tokenizer(directory)
    assert plain is not None
    assert plain.get_added_vocab() == full.get_added_vocab()
    assert plain.eos_token_id == full.eos_token_id
    for text in TEXTS:
        ids = full.encode(text, add_special_tokens=False)
        assert plain.encode(text, add_special_tokens=False) == ids
        assert plain.decode(ids) == full.decode(ids, clean_up_tokenization_spaces=False)
    for prompt in (True, False):
        one, other = (ChatTemplate(tokenizer).render_text(TALK, prompt=prompt) for tokenizer in (plain, full))
        assert one == other
    assert Renderer(plain).end_ids == Renderer(full).end_ids


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("{{ cycler.__init__.__globals__.os.mkdir('FOLDER') }}", "is unsafe"),
        ("{{ strftime_now.__globals__['os'].mkdir('FOLDER') }}", "unsafe|undefined"),
        ("{% set _ = messages.append(1) %}", "is unsafe"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'x'.index('y') }}", "substring not found"),
    ],
)
@pytest.mark.parametrize("read", [read_plain_tokenizer, AutoTokenizer.from_pretrained])
def test_a_template_runs_in_a_sandbox_and_what_it_raises_is_told(
    read: Callable[[Path], Any], program: str, words: str, tmp_path: Path
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(resolve_model("tiny-0.3m"), directory)
    (directory / "chat_template.jinja").write_text(program.replace("FOLDER", str(tmp_path / "made")))
    with pytest.raises(RenderError, match=rf"the chat template refused these messages \(.*{words}"):
        ChatTemplate(read(directory)).render_text(TALK, prompt=True)
    assert not (tmp_path / "made").exists()


def test_a_tokenizer_of_another_class_is_left_to_transformers(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(resolve_model("tiny-0.3m"), directory)
    file = directory / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"tokenizer_class": "Qwen2Tokenizer"}))
    assert read_plain_tokenizer(directory) is None
    file.write_text(json.dumps(settings | {"eos_token": "<|not there|>"}))
    assert read_plain_tokenizer(directory) is None
    file.write_text(json.dumps(settings))
    (directory / "tokenizer.json").write_text("{")
    assert read_plain_tokenizer(directory) is None
