"""A built-in model without its weights: all that planning a run needs, without torch and transformers.

An outline is a directory like that of the model, with `shapes.json` in place of weights. A plan then takes a
second, also where the model was never built. Tests compare plans made from both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell.policies.model_cache import get_cached_model
from stepwell.policies.model_resolver import (
    KNOWN_MODELS,
    SMOLLM2_VLM,
    TINY_NAMES,
    TINY_VLM_NAMES,
    resolve_model,
)
from stepwell.policies.smollm2 import CHAT_TEMPLATE, SMOLLM2, SMOLLM2_REVISION, list_special, open_gguf
from stepwell.policies.smollm2 import build_core as build_smollm2_core
from stepwell.policies.smollm2 import list_settings as list_smollm2_settings
from stepwell.policies.tiny_models import compute_tiny_digest, list_settings
from stepwell.policies.vlm.llava import (
    FILES,
    IMAGE_TOKEN,
    VisionTowerSize,
    list_image_settings,
    list_tower_settings,
    write_seeing_template,
)
from stepwell.policies.vlm.smollm2 import VISION_TOWER
from stepwell.policies.vlm.tiny import TINY_VLM_SIZES, compute_tiny_vlm_digest
from stepwell.rendering.tiny.tokenizer import SPECIAL, build_core, read_template
from stepwell.runs.plan.model_size import SHAPES

VERSION = 1  # increased when outlines change, so that older ones are not reused


@dataclass(frozen=True, slots=True)
class Outline:
    """`core` is a tokenizer of package `tokenizers`, `files` are further JSON files by name."""

    core: Any
    special: Mapping[str, str]
    template: str
    config: Mapping[str, Any]
    files: Mapping[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write the directory."""
        self.core.save(str(directory / "tokenizer.json"))
        (directory / "chat_template.jinja").write_text(self.template, encoding="utf-8")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **self.special}
        made = {"tokenizer_config.json": settings, "config.json": self.config}
        for name, content in {**made, SHAPES: dict(list_shapes(self.config)), **self.files}.items():
            (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def resolve_outline(
    name_or_path: str | os.PathLike[str], *, seed: int = 0, revision: str | None = None
) -> Path:
    """As `resolve_model`, but of a built-in model its outline, whatever the seed."""
    text = os.fspath(name_or_path)
    if text not in KNOWN_MODELS:
        return resolve_model(text, seed=seed, revision=revision)
    key = f"r{SMOLLM2_REVISION}"
    if text in TINY_NAMES:
        key = compute_tiny_digest(text)
    elif text in TINY_VLM_NAMES:
        key = compute_tiny_vlm_digest(text)
    return get_cached_model(
        f"{text}-outline{VERSION}-{key}", lambda folder: _make_outline(text).write(folder)
    )


def _make_outline(name: str) -> Outline:
    if name in TINY_VLM_SIZES:
        decoder, size = TINY_VLM_SIZES[name]
        return _add_sight(_make_outline(decoder), size)
    if name == SMOLLM2_VLM:
        return _add_sight(_make_outline(SMOLLM2), VISION_TOWER)
    if name == SMOLLM2:
        file = open_gguf()
        template = CHAT_TEMPLATE.read_text(encoding="utf-8")
        config = {"model_type": "llama", **list_smollm2_settings(file)}
        return Outline(build_smollm2_core(file), list_special(file), template, config)
    core = build_core()
    eos, pad = (core.token_to_id(SPECIAL[token]) for token in ("eos_token", "pad_token"))
    return Outline(core, SPECIAL, read_template(), {"model_type": "qwen3", **list_settings(name, eos, pad)})


def _add_sight(outline: Outline, size: VisionTowerSize) -> Outline:
    """The outline of a model whose decoder is that of `outline`."""
    from tokenizers import AddedToken

    outline.core.add_special_tokens([AddedToken(IMAGE_TOKEN, special=True, normalized=False)])
    config = {
        "model_type": "llava",
        "text_config": {**outline.config, "vocab_size": outline.core.get_vocab_size()},
        "vision_config": {"model_type": "siglip_vision_model", **list_tower_settings(size)},
        **list_image_settings(outline.core.token_to_id(IMAGE_TOKEN)),
    }
    template = write_seeing_template(outline.template)
    return Outline(outline.core, outline.special, template, config, FILES)


def list_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """The parameters of a Llama, a Qwen3, or a LLaVA around one, by name."""
    text = config.get("text_config", config)
    yield from _list_decoder_shapes(text)
    if text is not config:
        tower, width = config["vision_config"], text["hidden_size"]
        yield from _list_tower_shapes(tower)
        yield from _list_linear("projector.linear_1", tower["hidden_size"], width)
        yield from _list_linear("projector.linear_2", width, width)


def _list_decoder_shapes(text: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    width, hidden = text["hidden_size"], text["intermediate_size"]
    heads, shared = text["num_attention_heads"], text["num_key_value_heads"]
    size = text.get("head_dim", width // heads)
    yield from (("embed_tokens.weight", [text["vocab_size"], width]), ("norm.weight", [width]))
    inside = {"q": [heads * size, width], "k": [shared * size, width], "v": [shared * size, width]}
    inside |= {"o": [width, heads * size], "gate": [hidden, width], "up": [hidden, width]}
    inside |= {"down": [width, hidden], "input_norm": [width], "attention_norm": [width]}
    if text["model_type"] == "qwen3":
        inside |= {"q_norm": [size], "k_norm": [size]}
    for number in range(text["num_hidden_layers"]):
        yield from ((f"layers.{number}.{name}", shape) for name, shape in inside.items())


def _list_tower_shapes(tower: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    width, hidden, side = tower["hidden_size"], tower["intermediate_size"], tower["patch_size"]
    yield "tower.patch_embedding.weight", [width, 3, side, side]
    yield "tower.patch_embedding.bias", [width]
    yield "tower.position_embedding.weight", [(tower["image_size"] // side) ** 2, width]
    yield from _list_norm("tower.post_norm", width)
    for number in range(tower["num_hidden_layers"]):
        layer = f"tower.layers.{number}"
        for name in ("q", "k", "v", "out"):
            yield from _list_linear(f"{layer}.{name}", width, width)
        yield from _list_linear(f"{layer}.fc1", width, hidden)
        yield from _list_linear(f"{layer}.fc2", hidden, width)
        yield from (*_list_norm(f"{layer}.norm1", width), *_list_norm(f"{layer}.norm2", width))


def _list_linear(name: str, num_in: int, num_out: int) -> Iterator[tuple[str, list[int]]]:
    yield from ((f"{name}.weight", [num_out, num_in]), (f"{name}.bias", [num_out]))


def _list_norm(name: str, width: int) -> Iterator[tuple[str, list[int]]]:
    yield from ((f"{name}.weight", [width]), (f"{name}.bias", [width]))
