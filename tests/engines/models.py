"""Small models with random weights, one per architecture style, and what generate says of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB = 96
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.4,  # far from uniform, so that greedy choices are clear ones
}
WINDOW = 6
ALTERNATING = ["sliding_attention", "full_attention"]


def small_model(style: str, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Any:
    """A model of the named style with weights drawn from `seed`."""
    torch.manual_seed(seed)
    # untied: a tied Gemma of random weights repeats its last token, whatever attention says
    shape = {**SHAPE, "tie_word_embeddings": False, **changes}
    if style == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**shape))
    elif style == "llama-tied":
        model = LlamaForCausalLM(
            LlamaConfig(**{**shape, "tie_word_embeddings": True, "attention_bias": True})
        )
    elif style == "mistral":
        model = MistralForCausalLM(MistralConfig(**shape, sliding_window=WINDOW))
    elif style == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**{k: v for k, v in shape.items() if k != "head_dim"}))
    elif style == "qwen3":
        model = Qwen3ForCausalLM(
            Qwen3Config(**shape, use_sliding_window=True, sliding_window=WINDOW, layer_types=ALTERNATING)
        )
    elif style == "gemma2":
        model = Gemma2ForCausalLM(
            Gemma2Config(
                **shape,
                sliding_window=WINDOW,
                layer_types=ALTERNATING,
                query_pre_attn_scalar=8,
                attn_logit_softcapping=1.0,  # low enough to bend these small scores
                final_logit_softcapping=6.0,
            )
        )
    elif style == "gemma3":
        model = Gemma3ForCausalLM(
            Gemma3TextConfig(**shape, sliding_window=WINDOW, layer_types=ALTERNATING, query_pre_attn_scalar=8)
        )
    else:
        raise KeyError(style)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:  # made constant by default, which would hide mistakes
            torch.nn.init.normal_(parameter, mean=parameter.float().mean().item(), std=0.1)
    if style == "gemma2":
        model.set_attn_implementation("eager")  # transformers' default leaves its softcap out
    return model.to(dtype).eval()


STYLES = ("llama", "llama-tied", "mistral", "qwen2", "qwen3", "gemma2", "gemma3")


def generate_alone(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What transformers' own greedy decoding says, one prompt at a time."""
    ids = torch.tensor([list(prompt)], device=model.device)
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, use_cache=True
    )
    return [int(token) for token in out[0, len(prompt) :]]


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts without special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in lengths]
