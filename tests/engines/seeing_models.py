"""Small models that see, one per family, with their image formats; and what transformers says of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from tests.engines.models import SHAPE, VOCAB
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3Config,
    SiglipVisionConfig,
)

from stepwell.core.arrays import AnyArray
from stepwell.core.images import ImageStore
from stepwell.core.step import ImageSpan, TokenState
from stepwell.rendering.vision import ImageFormat
from stepwell.rendering.vision.idefics import IdeficsFormat
from stepwell.rendering.vision.llava import LlavaFormat
from stepwell.rendering.vision.qwen import QwenFormat

PLACEHOLDER = VOCAB - 1
FAMILIES = ("llava", "qwen", "idefics")
_SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


def seeing_model(family: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Any, ImageFormat]:
    """A model of the named family with weights drawn from `seed`, and how it writes images."""
    torch.manual_seed(seed)
    shape = {**SHAPE, "tie_word_embeddings": False, "max_position_embeddings": 256}
    vision = SiglipVisionConfig(**_SMALL, image_size=16, patch_size=8, initializer_range=0.4)
    if family == "llava":
        config: Any = LlavaConfig(
            text_config=Qwen3Config(**shape),
            vision_config=vision,
            image_token_index=PLACEHOLDER,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=False,
        )
        settings: dict[str, Any] = {"size": {"height": 16, "width": 16}, "do_center_crop": False}
        model: Any = LlavaForConditionalGeneration(config)
        image_format: ImageFormat = LlavaFormat("<image>", PLACEHOLDER, config.to_dict(), settings)
    elif family == "qwen":
        text = {k: v for k, v in shape.items() if k != "head_dim"}
        config = Qwen2_5_VLConfig(
            text_config={
                **text,
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 1]},
            },
            vision_config={
                "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
                "spatial_merge_size": 2, "out_hidden_size": 32, "window_size": 16,
                "fullatt_block_indexes": [0],
            },
            image_token_id=PLACEHOLDER,
            vision_start_token_id=90,
            tie_word_embeddings=False,
        )  # fmt: skip
        settings = {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 1024}
        model = Qwen2_5_VLForConditionalGeneration(config)
        image_format = QwenFormat("<|image_pad|>", PLACEHOLDER, config.to_dict(), settings)
    elif family == "idefics":
        config = Idefics3Config(
            text_config=LlamaConfig(**shape),
            vision_config={**_SMALL, "image_size": 16, "patch_size": 4},
            image_token_id=PLACEHOLDER,
            scale_factor=2,
            tie_word_embeddings=False,
        )
        settings = {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}
        model = Idefics3ForConditionalGeneration(config)
        image_format = IdeficsFormat("<image>", PLACEHOLDER, config.to_dict(), settings, _tags)
    else:
        raise KeyError(family)
    return model.to(dtype).eval(), image_format


def _tags(text: str) -> list[int]:
    """A tokenizer of sorts: one id per tag between angle brackets and per line's end."""
    pieces = re.findall(r"<[^>]*>|\n+", text)
    return [PLACEHOLDER if piece == "<image>" else 40 + sum(map(ord, piece)) % 40 for piece in pieces]


def image(seed: int, height: int = 16, width: int = 16) -> AnyArray:
    """Noise."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def prompt(image_format: ImageFormat, image_store: ImageStore, *parts: int | list[int]) -> TokenState:
    """A prompt of images (by number, see `image`) and lists of ids between them."""
    ids: list[int] = []
    spans = []
    for part in parts:
        if isinstance(part, list):
            ids += part
            continue
        pixels = image(part)
        run = image_format.build_tokens(*pixels.shape[:2]).ids.tolist()
        spans.append(ImageSpan(image_store.add(pixels), len(ids), len(run)))
        ids += run
    return TokenState(np.array(ids, np.int32), tuple(spans))


def own_logprobs(
    model: Any, image_format: ImageFormat, image_store: ImageStore, state: TokenState, action: list[int]
) -> AnyArray:
    """Logprobs of an action by the model's own whole forward, from pixels, without any cache."""
    ids = torch.tensor([[*state.prompt_ids.tolist(), *action]])
    given: dict[str, torch.Tensor] = {}
    if state.images:
        prepared = [image_format.build_arrays(image_store.get(span.image)) for span in state.images]
        given = {n: torch.from_numpy(np.concatenate([p[n] for p in prepared])) for n in prepared[0]}
        given["pixel_values"] = given["pixel_values"].to(model.dtype)
        if image_format.family == "idefics3":
            given["pixel_values"] = given["pixel_values"][None]
        if image_format.num_axes > 1:
            kinds = (ids == PLACEHOLDER).int()
            position_ids, _ = model.model.get_rope_index(
                ids, mm_token_type_ids=kinds, image_grid_thw=given["image_grid_thw"]
            )
            given["position_ids"] = position_ids
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False, **given).logits[0]
    start = state.prompt_ids.size
    chosen = torch.log_softmax(logits[start - 1 : -1].double(), -1)
    return chosen[torch.arange(len(action)), torch.tensor(action)].numpy()
