"""Detects from a model directory which kind of policy it holds: text only, with images, or a robot's."""

from __future__ import annotations

import json
from pathlib import Path

from stepwell.config import PolicyConfig
from stepwell.core import ImageStore
from stepwell.policies import directory, lora
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.model_resolver import ADAPTER_FILE
from stepwell.policies.vla.model import MODEL_TYPE
from stepwell.policies.vlm.policy import VLMPolicy
from stepwell.rendering.vision import is_vision_language


def accepts_images(name_or_path: str | Path) -> bool:
    """Return whether a model, given by path or built-in name, accepts images; adapters follow their base."""
    path = directory.locate_model(name_or_path)
    if (path / ADAPTER_FILE).is_file() and not (path / "config.json").is_file():
        path = directory.locate_model(lora.read_base_model(path))
    return is_vision_language(path)


def holds_robot_policy(path: Path) -> bool:
    """Return whether a checkpoint holds a robot policy, which transformers cannot open."""
    file = path / "config.json"
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")).get("model_type") == MODEL_TYPE


def open_policy(config: PolicyConfig, image_store: ImageStore | None = None) -> CausalLMPolicy:
    """Open the policy of these settings: a `VLMPolicy` with `image_store` if the model accepts images."""
    if accepts_images(config.model):
        return VLMPolicy.from_config(config, image_store)
    return CausalLMPolicy.from_config(config)
