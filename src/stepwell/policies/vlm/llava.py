"""Builds a LLaVA model of `transformers` around any language model, with weights drawn here.

The vision tower is SigLIP's without pooling; the projector has two layers. An image is resized to 96 x 96
pixels and read in patches of 16, which gives 36 tokens. One patch is one tile of a 6 x 6 board, and more than
half a tile of a 4 x 4 board. Weights depend only on the seed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.policies.progress_bar import hide_progress_bar
from stepwell.policies.tiny_models import EMBEDDING_STD, OUTPUT_SCALE

IMAGE_TOKEN = "<|image|>"
IMAGE_SIZE, PATCH_SIZE = 96, 16
PLACE_STD = 0.5
DRAW = 2  # increase when weights are drawn differently, so that older caches are not reused
_BILINEAR = 2
_TEXT_ALONE = "{{ message.content if message.content is not none else '' }}"
_PARTS = (
    "{%- for part in CONTENT or [] -%}"
    "{{ '" + IMAGE_TOKEN + "' if part.type == 'image' else part.text }}"
    "{%- endfor -%}"
)


@dataclass(frozen=True, slots=True)
class VisionTowerSize:
    """The shape of a vision tower."""

    num_layers: int
    width: int
    num_heads: int
    mlp_width: int


def write_content_macro(content: str) -> str:
    """Jinja code that writes a message's content, either text or a list of texts and images."""
    parts = _PARTS.replace("CONTENT", content)
    return f"{{%- if {content} is string -%}}{{{{ {content} }}}}{{%- else -%}}{parts}{{%- endif -%}}"


def write_seeing_template(template: str) -> str:
    """A chat template of texts that also writes images among them."""
    assert template.count(_TEXT_ALONE) == 1, "where the template writes a message's text"
    return template.replace(_TEXT_ALONE, write_content_macro("message.content"))


def build_llava_config(text: Any, size: VisionTowerSize, tokenizer: Any) -> Any:
    """The configuration of decoder `text` with a vision tower. `tokenizer` must know `IMAGE_TOKEN`."""
    from transformers import LlavaConfig, SiglipVisionConfig

    text.vocab_size = len(tokenizer)
    vision: Any = SiglipVisionConfig
    settings = list_image_settings(tokenizer.convert_tokens_to_ids(IMAGE_TOKEN))
    return LlavaConfig(vision_config=vision(**list_tower_settings(size)), text_config=text, **settings)


def list_tower_settings(size: VisionTowerSize) -> dict[str, Any]:
    """The configuration of a tower."""
    return {
        "hidden_size": size.width,
        "intermediate_size": size.mlp_width,
        "num_hidden_layers": size.num_layers,
        "num_attention_heads": size.num_heads,
        "image_size": IMAGE_SIZE,
        "patch_size": PATCH_SIZE,
        "vision_use_head": False,
    }


def list_image_settings(marker_id: int) -> dict[str, Any]:
    """How images stand among the tokens."""
    return {
        "image_token_index": marker_id,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "image_seq_length": (IMAGE_SIZE // PATCH_SIZE) ** 2,
        "tie_word_embeddings": True,
    }


def build_llava(config: Any, tokenizer: Any, seed: int, *, draws_decoder: bool) -> Any:
    """A fresh float32 model. Without `draws_decoder`, the caller loads the decoder's weights."""
    import torch
    from transformers import LlavaForConditionalGeneration

    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights, which are overwritten below
        model: Any = LlavaForConditionalGeneration(config)
    model = model.to(torch.float32).eval()
    _draw_weights(model, seed, draws_decoder)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def save_llava(model: Any, tokenizer: Any, directory: Path) -> None:
    """Write a standard Hugging Face directory."""
    with hide_progress_bar():
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for name, content in FILES.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


IMAGES = {
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
PROCESSOR = {
    "processor_class": "LlavaProcessor",
    "image_token": IMAGE_TOKEN,
    "patch_size": PATCH_SIZE,
    "num_additional_image_tokens": 0,
    "vision_feature_select_strategy": "full",
}
FILES = {"preprocessor_config.json": IMAGES, "processor_config.json": PROCESSOR}


def _draw_weights(model: Any, seed: int, draws_decoder: bool) -> None:
    """Draw every parameter in the order of their names. Norms are one, biases zero.

    Decoder matrices are drawn as in `tiny_models.py`. In the encoder and the projector, each matrix preserves
    the scale of its input, because weights as small as word embeddings would change too much in the first
    updates. The position embedding of a patch is the sum of a row vector and a column vector, so that what is
    learnt about a row in one column holds in all columns.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    text_std = model.config.text_config.hidden_size**-0.5
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "language_model" in name and not draws_decoder:
                continue
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
