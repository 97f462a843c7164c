"""Small models of every attention style with random weights, and batches of every shape.

Two layers, windows of 8 and a soft cap small enough to bend scores, so that whatever a
kernel leaves out shows in the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stepwell.core import Sampling, Step
from stepwell.policies import CausalLMPolicy

VOCAB = 61
WINDOW = 8

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}


def build(family: str) -> Any:
    """A model of `family`, the same every time."""
    torch.manual_seed(0)
    model = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=True)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(**COMMON, sliding_window=WINDOW)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, use_sliding_window=True, **LAYERS)),
        "gemma2": lambda: Gemma2ForCausalLM(
            Gemma2Config(**COMMON, **LAYERS, attn_logit_softcapping=2.0, query_pre_attn_scalar=9)
        ),
        "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**COMMON, **LAYERS, query_pre_attn_scalar=9)),
    }[family]()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # far from the tiny default weights, so that attention is not uniform
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def tokens(draw: np.random.Generator, count: int) -> list[int]:
    return [int(token) for token in draw.integers(3, VOCAB, size=count)]


def append_only(draw: np.random.Generator, turns: int, prompt: list[int] | None = None) -> list[Step]:
    """One dialogue: each step's prompt is all that came before, plus an observation."""
    context = prompt or tokens(draw, 9)
    steps = []
    for _ in range(turns):
        action = tokens(draw, int(draw.integers(1, 6)))
        steps.append(
            Step.from_tokens(context, action, sampling=Sampling(temperature=float(draw.choice([1.0, 0.7]))))
        )
        context = context + action + tokens(draw, int(draw.integers(1, 7)))
    return steps


def rewritten(draw: np.random.Generator) -> list[Step]:
    """Contexts that keep their head and change their middle."""
    head, tail = tokens(draw, 6), tokens(draw, 5)
    return [Step.from_tokens(head + tokens(draw, 4) + tail, tokens(draw, 3)) for _ in range(3)]


def group(draw: np.random.Generator) -> list[Step]:
    """Siblings on one prompt, one of them with an equal start."""
    prompt, action = tokens(draw, 11), tokens(draw, 6)
    siblings = [Step.from_tokens(prompt, tokens(draw, 6)) for _ in range(3)]
    return [
        *siblings,
        Step.from_tokens(prompt, action),
        Step.from_tokens(prompt, [*action[:4], *tokens(draw, 2)]),
    ]


def make_batches() -> dict[str, list[Step]]:
    """Batches by name, small and fixed."""
    draw = np.random.default_rng(7)
    prompt = tokens(draw, 12)
    dialogue, rewriting, siblings = append_only(draw, 4), rewritten(draw), group(draw)
    repeated = [dialogue[1], dialogue[1], siblings[0], siblings[0]]
    value_only = [
        Step.from_tokens(prompt, []),
        Step.from_tokens(prompt, [5, 6]),
        Step.from_tokens(prompt[:5], []),
    ]
    long = [Step.from_tokens(tokens(draw, 90), tokens(draw, 80))]
    mixture = [*dialogue, *rewriting, *siblings, *repeated, *value_only, *append_only(draw, 3, prompt), *long]
    order = np.random.default_rng(3).permutation(len(mixture))
    return {
        "dialogue": dialogue,
        "rewritten": rewriting,
        "group": siblings,
        "repeated": repeated,
        "value_only": value_only,
        "mixture": [mixture[i] for i in order],
    }


@pytest.fixture(scope="session")
def batches() -> dict[str, list[Step]]:
    return make_batches()


@pytest.fixture(scope="session")
def family_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A directory with the model of a family, written once."""
    root = tmp_path_factory.mktemp("families")

    def path(family: str) -> Path:
        if not (root / family).exists():
            build(family).save_pretrained(root / family)
        return root / family

    return path


@pytest.fixture(scope="session")
def open_policy(family_path: Callable[[str], Path]) -> Callable[..., CausalLMPolicy]:
    """A policy of a family, opened once per set of options; tests leave its weights alone."""
    opened: dict[Any, CausalLMPolicy] = {}

    def open_one(family: str, **options: Any) -> CausalLMPolicy:
        key = (family, *sorted(options.items()))
        if key not in opened:
            opened[key] = CausalLMPolicy.from_pretrained(family_path(family), **options)
            if opened[key].critic is not None:  # an own critic must not be the actor in disguise
                generator = torch.Generator().manual_seed(5)
                with torch.no_grad():
                    for parameter in opened[key].critic.parameters():
                        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                        parameter.add_((0.1 * noise).to(parameter.dtype))
        return opened[key]

    return open_one
