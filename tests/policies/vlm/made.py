"""Small untrained vision-language models of every family, with the real classes of transformers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.core import ImageStore, Step, TokenAction
from stepwell.policies.vlm.policy import VLMPolicy
from stepwell.policies.vlm.tiny import create_tiny_vlm
from stepwell.rendering import Conversation, ImagePart, Message, Renderer, TextPart, load_tokenizer
from stepwell.rendering.tiny import build_tokenizer

FAMILIES = ("tiny", "llava", "qwen2_5_vl", "qwen2_vl", "idefics3", "smolvlm")

TAGS = ["<fake_token_around_image>", "<global-img>"]
TAGS += [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]

# Turns in the manner of each family, in our own words.
CHATML = """
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else -%}
{%- for p in m.content %}{{ IMAGE if p.type == 'image' else p.text }}{% endfor -%}
{%- endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
# Parts alone, images before all text, as LLaVA's.
PARTS_ALONE = """
{%- for m in messages -%}<|im_start|>{{ m.role }}
{% for p in m.content if p.type == 'image' %}{{ IMAGE + '\n' }}{% endfor -%}
{%- for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}


def make_directory(family: str, path: Path) -> Path:
    """Write a model of `family` into `path`."""
    if family == "tiny":
        return create_tiny_vlm("tiny-vlm-0.5m", path)
    tokenizer = _tokenizer(family)
    torch.manual_seed(0)
    model, processor = _MAKERS[family](tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # larger than initial weights, so that nothing hides below a tolerance
                parameter.normal_(0.0, 0.5 * parameter[0].numel() ** -0.5)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


def _tokenizer(family: str) -> Any:
    tokenizer = build_tokenizer()
    marker = "<|image_pad|>" if family.startswith("qwen") else "<image>"
    extra = [marker, "<|vision_start|>", "<|vision_end|>", "<|video_pad|>", *TAGS]
    tokenizer.add_special_tokens({"additional_special_tokens": extra})
    written = f"'<|vision_start|>{marker}<|vision_end|>'" if family.startswith("qwen") else f"'{marker}'"
    template = PARTS_ALONE if family in ("llava", "smolvlm") else CHATML
    tokenizer.chat_template = template.strip("\n").replace("IMAGE", written)
    return tokenizer


def _ids(tokenizer: Any) -> dict[str, int]:
    return {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _llava(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=28,
        patch_size=7,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(**TEXT, **_ids(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    size = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    return LlavaForConditionalGeneration(config), {
        "do_resize": True,
        "do_center_crop": True,
        "resample": 3,
        **size,
    }


def _qwen25(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "patch_size": 7,
        "out_hidden_size": 32,
        "window_size": 28,
        "fullatt_block_indexes": [1],
    }
    config = Qwen2_5_VLConfig(**_qwen(tokenizer, vision))
    return Qwen2_5_VLForConditionalGeneration(config), _QWEN_PIXELS


def _qwen2(tokenizer: Any) -> tuple[Any, dict[str, Any]]:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 7, "mlp_ratio": 2}
    return Qwen2VLForConditionalGeneration(Qwen2VLConfig(**_qwen(tokenizer, vision))), _QWEN_PIXELS


_QWEN_PIXELS = {
    "patch_size": 7,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 196,
    "max_pixels": 3136,
}


def _qwen(tokenizer: Any, vision: dict[str, Any]) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    names = {"image": "<|image_pad|>", "vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    names["video"] = "<|video_pad|>"
    tokens = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(text) for name, text in names.items()}
    return {
        "text_config": {**TEXT, **_ids(tokenizer), "rope_parameters": rope},
        "vision_config": vision,
        **tokens,
    }


def _idefics(tokenizer: Any, smol: bool = False) -> tuple[Any, dict[str, Any]]:
    import transformers

    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 28,
        "patch_size": 7,
    }
    kinds = ("SmolVLMConfig", "SmolVLMForConditionalGeneration") if smol else _IDEFICS
    config = getattr(transformers, kinds[0])(
        vision_config=vision,
        text_config=transformers.LlamaConfig(**TEXT, **_ids(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=0,
        scale_factor=2,
    )
    size = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}
    return getattr(transformers, kinds[1])(config), {**size, "do_image_splitting": not smol, "resample": 1}


_IDEFICS = ("Idefics3Config", "Idefics3ForConditionalGeneration")
_MAKERS: dict[str, Callable[[Any], tuple[Any, dict[str, Any]]]] = {
    "llava": _llava,
    "qwen2_5_vl": _qwen25,
    "qwen2_vl": _qwen2,
    "idefics3": _idefics,
    "smolvlm": functools.partial(_idefics, smol=True),
}


class Scene:
    """A family's policy in float64, its renderer, and two images of different sizes."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.image_store = ImageStore()
        draw = np.random.default_rng(0)
        sizes = ((40, 60), (33, 21), (28, 28))
        self.images = [draw.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
        self.names = [self.image_store.add(image) for image in self.images]
        self.policy = VLMPolicy.from_pretrained(
            path, image_store=self.image_store, **{"dtype": "float64", **options}
        )
        self.tokenizer = load_tokenizer(path)
        self.renderer = Renderer(
            self.tokenizer, image_format=self.policy.image_format, image_store=self.image_store
        )

    def show(self, *parts: int | str) -> Message:
        """A user message: images by number, text as it is."""
        return Message.user([TextPart(p) if isinstance(p, str) else ImagePart(self.names[p]) for p in parts])

    def steps(self) -> list[Step]:
        """Two dialogues of two turns below one prompt, a third that differs in an image, one of text."""
        system, end = Message.system("You see boards."), self.renderer.end_ids[0]
        opening = [system, self.show("Look: ", 0, " and go.")]
        steps = []
        for first, second in (("Up", "Down"), ("Left", "Left Up")):
            conversation = Conversation(self.renderer, opening)
            for answer, then in ((first, self.show("Now", 1, 0)), (second, None)):
                ids = [*self.tokenizer.encode(answer), end]
                steps.append(Step(conversation.state, _action(ids), np.zeros(0, np.float32)))
                conversation.record_action(ids)
                if then is not None:
                    assert conversation.add(then).extended
        other = Conversation(self.renderer, [system, self.show("Look: ", 2, " and go.")])
        steps.append(Step(other.state, _action([5, 6, end]), np.zeros(0, np.float32)))
        text = Conversation(self.renderer, [system, Message.user("Nothing to see.")])
        steps.append(Step(text.state, _action([7, end]), np.zeros(0, np.float32)))
        return steps


def _action(ids: list[int]) -> TokenAction:
    return TokenAction(np.array(ids, dtype=np.int32))
