"""Tiny vision-language models that need no download: a small encoder on a tiny decoder.

The decoders of `tiny_models.py` with a vision tower (`llava.py`). The tokenizer is the same, plus one image
token.

| name             | parameters | decoder     | encoder: layers, width |
|------------------|-----------:|-------------|------------------------|
| `tiny-vlm-0.5m`  |    547,424 | `tiny-0.3m` | 2, 96                  |
| `tiny-vlm-1.5m`  |  1,484,416 | `tiny-1m`   | 2, 128                 |

As with the decoders, weights depend only on the name and the seed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stepwell.core.errors import ModelError
from stepwell.policies.tiny_models import build_decoder_config, compute_tiny_digest
from stepwell.policies.vlm.llava import (
    DRAW,
    IMAGE_TOKEN,
    IMAGES,
    PROCESSOR,
    VisionTowerSize,
    build_llava,
    build_llava_config,
    save_llava,
    write_content_macro,
    write_seeing_template,
)
from stepwell.rendering.tiny import build_tokenizer

TINY_VLM_SIZES = {
    "tiny-vlm-0.5m": ("tiny-0.3m", VisionTowerSize(num_layers=2, width=96, num_heads=4, mlp_width=192)),
    "tiny-vlm-1.5m": ("tiny-1m", VisionTowerSize(num_layers=2, width=128, num_heads=4, mlp_width=384)),
}
"""Decoder and encoder by name."""


def build_tiny_vlm(name: str, seed: int = 0) -> tuple[Any, Any]:
    """A fresh float32 model and its tokenizer. The same name and seed give the same weights."""
    decoder, tower_size = _get_size(name)
    tokenizer = _build_tokenizer()
    config = build_llava_config(build_decoder_config(decoder, tokenizer), tower_size, tokenizer)
    return build_llava(config, tokenizer, seed, draws_decoder=True), tokenizer


def create_tiny_vlm(name: str, directory: str | Path, seed: int = 0) -> Path:
    """Write a tiny model as a standard Hugging Face directory. The same seed writes the same bytes."""
    model, tokenizer = build_tiny_vlm(name, seed)
    save_llava(model, tokenizer, Path(directory))
    return Path(directory)


def compute_tiny_vlm_digest(name: str) -> str:
    """A digest that changes whenever the files of a tiny model would. It is part of the cache key."""
    decoder, tower_size = _get_size(name)
    parts = (
        tower_size,
        compute_tiny_digest(decoder),
        IMAGE_TOKEN,
        write_content_macro("message.content"),
        IMAGES,
        PROCESSOR,
        DRAW,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _get_size(name: str) -> tuple[str, VisionTowerSize]:
    if name not in TINY_VLM_SIZES:
        raise ModelError(f"unknown tiny model {name!r}; there are {', '.join(TINY_VLM_SIZES)}")
    return TINY_VLM_SIZES[name]


def _build_tokenizer() -> Any:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    tokenizer.chat_template = write_seeing_template(tokenizer.chat_template)
    return tokenizer
