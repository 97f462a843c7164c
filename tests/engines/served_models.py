"""The models that servers of tests serve: one that reads, and two that see.

python -m tests.engines.served_models text | llava | qwen FOLDER      written as vLLM reads them
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tests.policies.vlm.made import CHATML

from stepwell.engines.served.images import rename_weights
from stepwell.engines.served.weight_folder import save_renamed
from stepwell.policies.tiny_models import build_tiny
from stepwell.policies.vlm.llava import save_llava
from stepwell.policies.vlm.tiny import build_tiny_vlm
from stepwell.rendering.tiny import build_tokenizer

SEEING = ("llava", "qwen")
_QWEN_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_QWEN_PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 256,
    "max_pixels": 4096,
}
_QWEN_VIDEO = {**_QWEN_PIXELS, "image_processor_type": None, "video_processor_type": "Qwen2VLVideoProcessor"}


@cache
def read_tiny() -> tuple[Any, Any]:
    """A model whose tokens are not all alike, with a head of its own, and its tokenizer."""
    model, tokenizer = build_tiny("tiny-0.3m", seed=3)
    return _sharpen_model(model), tokenizer


@cache
def read_seeing(family: str = "llava") -> tuple[Any, Any]:
    """The same, of a family that sees."""
    model, tokenizer = build_tiny_vlm("tiny-vlm-0.5m", seed=3) if family == "llava" else _build_qwen()
    return _sharpen_model(model), tokenizer


def _sharpen_model(model: Any) -> Any:
    with torch.no_grad():
        model.get_decoder().norm.weight.mul_(4.0)  # fresh weights find all tokens alike: that hides mistakes
    for config in {id(part): part for part in (model.config, model.config.get_text_config())}.values():
        config.tie_word_embeddings = False  # vLLM on CPUs does not update tied heads
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model.eval()


def _build_qwen() -> tuple[Any, Any]:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(_QWEN_TOKENS.values())})
    tokenizer.chat_template = CHATML.strip("\n").replace(
        "IMAGE", "'<|vision_start|><|image_pad|><|vision_end|>'"
    )
    text = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "hidden_size": 128,  # 4 heads of 32: the smallest that vLLM has on CPUs
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
    }
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "patch_size": 8,
        "out_hidden_size": 128,
        "window_size": 32,
        "fullatt_block_indexes": [1],
    }
    tokens = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _QWEN_TOKENS.items()}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **tokens)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        model = Qwen2_5_VLForConditionalGeneration(config).float()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.5 * parameter[0].numel() ** -0.5)
    return model, tokenizer


def write_seeing(folder: Path, family: str = "llava") -> Path:
    """Write a model that sees as servers read it."""
    model, tokenizer = read_seeing(family)
    if family == "llava":
        save_llava(model, tokenizer, folder)
    else:
        tokenizer.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps(_QWEN_PIXELS))
        (folder / "video_preprocessor_config.json").write_text(json.dumps(_QWEN_VIDEO))
    save_renamed(model, folder, rename_weights)
    return folder


if __name__ == "__main__":
    kind, place = sys.argv[1:]
    if kind in SEEING:
        write_seeing(Path(place), kind)
    else:
        for part in read_tiny():
            part.save_pretrained(place)
