"""Tiny language models without a download: random weights in a current decoder architecture.

They are Qwen3 models of `transformers` (RMSNorm, rotary positions, grouped queries with
normalised queries and keys, SwiGLU, tied embeddings) with the byte-level tokenizer of
`stepwell.rendering.tiny` (1,024 tokens, context 4,096). A laptop's CPU can train them from
scratch on the built-in games:

| name         | parameters | layers | width | heads (queries / keys) |
|--------------|-----------:|-------:|------:|------------------------|
| `tiny-0.3m`  |    301,664 |      2 |    96 | 4 / 2                  |
| `tiny-1m`    |  1,017,216 |      4 |   128 | 4 / 2                  |
| `tiny-5m`    |  4,984,448 |      6 |   256 | 8 / 4                  |

Weights are drawn here, parameter by parameter in the order of their names, from a separate
generator. They depend on the name and the seed, but not on the global random state or on
the initialisation of `transformers`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepwell.core.errors import ModelError
from stepwell.policies.progress_bar import hide_progress_bar
from stepwell.rendering.tiny import TINY_CONTEXT, TINY_VOCAB_SIZE, build_tokenizer, digest_tokenizer

EMBEDDING_STD = 0.02
OUTPUT_SCALE = 0.1  # for matrices that write into the residual stream
ROPE_THETA = 500.0
_DRAW = 2  # increased when the way of drawing changes, so that older caches are not reused


@dataclass(frozen=True, slots=True)
class TinySize:
    """The shape of one tiny model."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    head_dim: int = 32


TINY_SIZES = {
    "tiny-0.3m": TinySize(num_layers=2, width=96, num_heads=4, num_kv_heads=2, mlp_width=224),
    "tiny-1m": TinySize(num_layers=4, width=128, num_heads=4, num_kv_heads=2, mlp_width=448),
    "tiny-5m": TinySize(num_layers=6, width=256, num_heads=8, num_kv_heads=4, mlp_width=768),
}


def build_tiny(name: str, seed: int = 0) -> tuple[Any, Any]:
    """Build a new float32 model and its tokenizer; the same name and seed give the same weights."""
    import torch
    from transformers import Qwen3ForCausalLM

    tokenizer = build_tokenizer()
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights that we overwrite
        model: Any = Qwen3ForCausalLM(build_decoder_config(name, tokenizer))  # type: ignore[no-untyped-call]
    model = model.to(torch.float32).eval()
    _draw_weights(model, seed)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def create_tiny(name: str, directory: str | Path, seed: int = 0) -> Path:
    """Write a tiny model as an ordinary Hugging Face directory; the same seed writes the same bytes."""
    directory = Path(directory)
    model, tokenizer = build_tiny(name, seed)
    with hide_progress_bar():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def compute_tiny_digest(name: str) -> str:
    """Compute a digest that changes with the files of a tiny model; part of its name in the cache."""
    shape = (_get_size(name), EMBEDDING_STD, OUTPUT_SCALE, ROPE_THETA, _DRAW)
    parts = (*shape, digest_tokenizer(), version("transformers"))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _get_size(name: str) -> TinySize:
    if name not in TINY_SIZES:
        raise ModelError(f"unknown tiny model {name!r}; there are {', '.join(TINY_SIZES)}")
    return TINY_SIZES[name]


def build_decoder_config(name: str, tokenizer: Any) -> Any:
    """Build the Qwen3 configuration of a tiny decoder."""
    from transformers import Qwen3Config

    return Qwen3Config(**list_settings(name, tokenizer.eos_token_id, tokenizer.pad_token_id))


def list_settings(name: str, eos_token_id: int, pad_token_id: int) -> dict[str, Any]:
    """The configuration of a tiny decoder."""
    size = _get_size(name)
    return {
        "vocab_size": TINY_VOCAB_SIZE,
        "hidden_size": size.width,
        "intermediate_size": size.mlp_width,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "num_key_value_heads": size.num_kv_heads,
        "head_dim": size.head_dim,
        "max_position_embeddings": TINY_CONTEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE_THETA},
        "tie_word_embeddings": True,
        "initializer_range": EMBEDDING_STD,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": pad_token_id,
    }


def _draw_weights(model: Any, seed: int) -> None:
    """Draw every parameter in the order of their names; the only vectors are norms, which start at one.

    Matrices get the standard deviation that preserves the size of a signal at this width; with
    the 0.02 of large models it would shrink and boards would be learned more slowly. The tied
    embedding is small, so that a new policy is nearly indifferent between tokens. What layers
    write into the residual stream is small beside it, so that every layer still sees the tokens.
    The rotary base suits prompts of hundreds of tokens: with that of large models half of the
    frequencies would hardly change over a board.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    matrix_std = model.config.hidden_size**-0.5
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                std = EMBEDDING_STD if "embed_tokens" in name else matrix_std
                if "o_proj" in name or "down_proj" in name:
                    std *= OUTPUT_SCALE
                parameter.normal_(0.0, std, generator=generator)
