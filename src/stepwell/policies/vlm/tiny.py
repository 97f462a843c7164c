"""Tiny vision-language models that need no download: a small encoder on the tiny decoder.

They are LLaVA models of `transformers` (a SigLIP vision tower without pooling, a projector of
two layers) over the decoders of `builtin.py`, with the same tokenizer and one token more for
pictures. A picture is shrunk to 96 x 96 pixels and read in patches of 16, 36 tokens in all: one
patch is one tile of a 6 x 6 board, and more than half a tile of a 4 x 4 one.

| name             | parameters | decoder     | encoder: layers, width |
|------------------|-----------:|-------------|------------------------|
| `tiny-vlm-0.5m`  |    547,424 | `tiny-0.3m` | 2, 96                  |
| `tiny-vlm-1.5m`  |  1,484,416 | `tiny-1m`   | 2, 128                 |

As those of the decoders, weights depend on the name and the seed alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stepwell.core.errors import ModelError
from stepwell.policies.builtin import EMBEDDING_STD, OUTPUT_SCALE, decoder_config, tiny_digest
from stepwell.rendering.tiny import build_tokenizer

IMAGE_TOKEN = "<|image|>"
IMAGE_SIZE, PATCH_SIZE = 96, 16
PLACE_STD = 0.5
_BILINEAR = 2
_DRAW = 2  # raised when weights are drawn in another way, so that older caches are not reused
_TEXT_ALONE = "{{ message.content if message.content is not none else '' }}"
_WITH_IMAGES = (
    "{%- if message.content is string -%}{{ message.content }}{%- else -%}"
    "{%- for part in message.content or [] -%}"
    "{{ '" + IMAGE_TOKEN + "' if part.type == 'image' else part.text }}"
    "{%- endfor -%}{%- endif -%}"
)


@dataclass(frozen=True, slots=True)
class TinyVisionSize:
    """The shape of one tiny vision-language model."""

    decoder: str
    num_layers: int
    width: int
    num_heads: int
    mlp_width: int


TINY_VLM_SIZES = {
    "tiny-vlm-0.5m": TinyVisionSize("tiny-0.3m", num_layers=2, width=96, num_heads=4, mlp_width=192),
    "tiny-vlm-1.5m": TinyVisionSize("tiny-1m", num_layers=2, width=128, num_heads=4, mlp_width=384),
}


def build_tiny_vlm(name: str, seed: int = 0) -> tuple[Any, Any]:
    """A fresh float32 model and its tokenizer; the same name and seed give the same weights."""
    from transformers import LlavaForConditionalGeneration

    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights that we overwrite
        model: Any = LlavaForConditionalGeneration(_config(name, tokenizer))
    model = model.to(torch.float32).eval()
    _draw_weights(model, seed)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def create_tiny_vlm(name: str, directory: str | Path, seed: int = 0) -> Path:
    """Write a tiny model as an ordinary Hugging Face directory; the same seed writes the same bytes."""
    from stepwell.policies.directory import without_progress_bar  # heavy: transformers

    directory = Path(directory)
    model, tokenizer = build_tiny_vlm(name, seed)
    with without_progress_bar():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for file, content in (("preprocessor_config.json", _IMAGES), ("processor_config.json", _PROCESSOR)):
        (directory / file).write_text(json.dumps(content, indent=2) + "\n")
    return directory


def tiny_vlm_digest(name: str) -> str:
    """Changes whenever the files of a tiny model would: part of the name it is cached under."""
    size = _size(name)
    parts = (size, tiny_digest(size.decoder), IMAGE_TOKEN, _WITH_IMAGES, _IMAGES, _PROCESSOR, _DRAW)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


_IMAGES = {
    "image_processor_type": "SiglipImageProcessor",
    "do_resize": True,
    "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
    "resample": _BILINEAR,
    "do_center_crop": False,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.25, 0.25, 0.25],
    "processor_class": "LlavaProcessor",
}
_PROCESSOR = {
    "processor_class": "LlavaProcessor",
    "image_token": IMAGE_TOKEN,
    "patch_size": PATCH_SIZE,
    "num_additional_image_tokens": 0,
    "vision_feature_select_strategy": "full",
}


def _size(name: str) -> TinyVisionSize:
    if name not in TINY_VLM_SIZES:
        raise ModelError(f"unknown tiny model {name!r}; there are {', '.join(TINY_VLM_SIZES)}")
    return TINY_VLM_SIZES[name]


def _tokenizer() -> Any:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    assert tokenizer.chat_template.count(_TEXT_ALONE) == 1, "the macro that writes a message's text"
    tokenizer.chat_template = tokenizer.chat_template.replace(_TEXT_ALONE, _WITH_IMAGES)
    return tokenizer


def _config(name: str, tokenizer: Any) -> Any:
    from transformers import LlavaConfig, SiglipVisionConfig

    size = _size(name)
    text = decoder_config(size.decoder, tokenizer)
    text.vocab_size = len(tokenizer)
    vision: Any = SiglipVisionConfig
    tower = vision(
        hidden_size=size.width,
        intermediate_size=size.mlp_width,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
        vision_use_head=False,
    )
    return LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=(IMAGE_SIZE // PATCH_SIZE) ** 2,
        tie_word_embeddings=True,
    )


def _draw_weights(model: Any, seed: int) -> None:
    """Draw every parameter in the order of their names: norms are one, biases zero.

    Decoder matrices as in `builtin.py`. In the encoder and the projector each matrix keeps a
    signal's size: weights as small as the embeddings of words would be thrown about by the first
    updates. The place of a patch is the sum of a row's and a column's vector, so that a row read
    off one column can be read off all of them.
    """
    generator = torch.Generator().manual_seed(seed)
    text_std = model.config.text_config.hidden_size**-0.5
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.ndim == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            std = text_std if "language_model" in name else parameter[0].numel() ** -0.5
            if "embed_tokens" in name:
                std = EMBEDDING_STD
            elif "position_embedding" in name:
                side = IMAGE_SIZE // PATCH_SIZE
                rows, columns = torch.randn(2, side, parameter.shape[1], generator=generator)
                parameter.copy_(PLACE_STD * (rows[:, None] + columns).flatten(0, 1))
                continue
            if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")):
                std *= OUTPUT_SCALE
            parameter.normal_(0.0, std, generator=generator)
