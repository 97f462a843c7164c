"""A small Llama in a folder, and steps of one prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
)

from stepwell.core import (
    Step,
)

VOCAB, CONTEXT = 40, 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with dropout in its config and files a tokenizer would leave."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, attention_dropout=0.5,
        tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "llama"
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture
def steps() -> list[Step]:
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, VOCAB, size=10)
    return [Step.from_tokens(prompt, draw.integers(0, VOCAB, size=n)) for n in (3, 5, 1)]
