"""Tiny vision-language models that need no download: a small encoder on the tiny decoder.

The decoders of `tiny_models.py` behind an eye (`llava.py`), with the same tokenizer and one token more for
pictures.

| name             | parameters | decoder     | encoder: layers, width |
|------------------|-----------:|-------------|------------------------|
| `tiny-vlm-0.5m`  |    547,424 | `tiny-0.3m` | 2, 96                  |
| `tiny-vlm-1.5m`  |  1,484,416 | `tiny-1m`   | 2, 128                 |

As those of the decoders, weights depend on the name and the seed alone.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stepwell.core.errors import ModelError
from stepwell.policies.tiny_models import decoder_config, tiny_digest
from stepwell.policies.vlm.llava import (
    DRAW,
    IMAGE_TOKEN,
    IMAGES,
    PROCESSOR,
    Eye,
    build_llava,
    llava_config,
    save_llava,
    written,
)
from stepwell.rendering.tiny import build_tokenizer

_TEXT_ALONE = "{{ message.content if message.content is not none else '' }}"
TINY_VLM_SIZES = {
    "tiny-vlm-0.5m": ("tiny-0.3m", Eye(num_layers=2, width=96, num_heads=4, mlp_width=192)),
    "tiny-vlm-1.5m": ("tiny-1m", Eye(num_layers=2, width=128, num_heads=4, mlp_width=384)),
}
"""Decoder and encoder by name."""


def build_tiny_vlm(name: str, seed: int = 0) -> tuple[Any, Any]:
    """A fresh float32 model and its tokenizer; the same name and seed give the same weights."""
    decoder, eye = _size(name)
    tokenizer = _tokenizer()
    config = llava_config(decoder_config(decoder, tokenizer), eye, tokenizer)
    return build_llava(config, tokenizer, seed, draws_decoder=True), tokenizer


def create_tiny_vlm(name: str, directory: str | Path, seed: int = 0) -> Path:
    """Write a tiny model as an ordinary Hugging Face directory; the same seed writes the same bytes."""
    model, tokenizer = build_tiny_vlm(name, seed)
    save_llava(model, tokenizer, Path(directory))
    return Path(directory)


def tiny_vlm_digest(name: str) -> str:
    """Changes whenever the files of a tiny model would: part of the name it is cached under."""
    decoder, eye = _size(name)
    parts = (eye, tiny_digest(decoder), IMAGE_TOKEN, written("message.content"), IMAGES, PROCESSOR, DRAW)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _size(name: str) -> tuple[str, Eye]:
    if name not in TINY_VLM_SIZES:
        raise ModelError(f"unknown tiny model {name!r}; there are {', '.join(TINY_VLM_SIZES)}")
    return TINY_VLM_SIZES[name]


def _tokenizer() -> Any:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    assert tokenizer.chat_template.count(_TEXT_ALONE) == 1, "the macro that writes a message's text"
    tokenizer.chat_template = tokenizer.chat_template.replace(_TEXT_ALONE, written("message.content"))
    return tokenizer
