"""SmolLM2-135M with a vision tower: a pretrained decoder that must learn to see.

The decoder, its tokenizer and its chat template are those of `smollm2.py`, plus one image token. The vision
tower (`llava.py`) has four layers of width 256, drawn from the seed. Its last layer is scaled so that image
features are as large as word embeddings; otherwise the first images would disturb a decoder that has never
seen one. All weights are stored as bfloat16, like the decoder's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.policies.smollm2 import SMOLLM2_REVISION, get_cached_smollm2
from stepwell.policies.vlm.llava import (
    DRAW,
    IMAGE_TOKEN,
    VisionTowerSize,
    build_llava,
    build_llava_config,
    save_llava,
    write_seeing_template,
)

VISION_TOWER = VisionTowerSize(num_layers=4, width=256, num_heads=8, mlp_width=768)


def build_smollm2_vlm_key(seed: int) -> str:
    """The cache key of the model."""
    return f"smollm2-vlm-seed{seed}-r{SMOLLM2_REVISION}-{DRAW}"


def create_smollm2_vlm(directory: Path, seed: int = 0) -> None:
    """Write the model as a Hugging Face directory."""
    import torch
    from transformers import AutoConfig, AutoTokenizer

    base = get_cached_smollm2()
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    tokenizer.chat_template = write_seeing_template(tokenizer.chat_template)
    config = build_llava_config(AutoConfig.from_pretrained(base), VISION_TOWER, tokenizer)
    model = build_llava(config, tokenizer, seed, draws_decoder=False)
    _load_decoder(model, base)
    save_llava(model.to(torch.bfloat16), tokenizer, directory)


def _load_decoder(model: Any, base: Path) -> None:
    import torch
    from safetensors.torch import load_file

    with torch.no_grad():
        weights = {
            name.removeprefix("model."): tensor
            for name, tensor in load_file(base / "model.safetensors").items()
        }
        words = weights["embed_tokens.weight"].float()
        weights["embed_tokens.weight"] = torch.cat(
            [words, words.mean(dim=0, keepdim=True)]
        )  # of the image token
        decoder = model.model.language_model
        decoder.load_state_dict({name: weights[name] for name in decoder.state_dict()})
        model.tie_weights()
        model.model.multi_modal_projector.linear_2.weight *= words.pow(2).mean().sqrt()
