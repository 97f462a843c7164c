"""What kind of policy a model directory holds, found from its own files: text alone, or with pictures."""

from __future__ import annotations

from pathlib import Path

from stepwell.config import PolicyConfig
from stepwell.core import ImageStore
from stepwell.policies import directory, lora
from stepwell.policies.causal_lm import CausalLMPolicy
from stepwell.policies.model_resolver import ADAPTER_FILE
from stepwell.policies.vlm.policy import VLMPolicy
from stepwell.rendering.vision import is_vision_language


def accepts_images(name_or_path: str | Path) -> bool:
    """Whether a model, given by path or built-in name, takes pictures; adapters are as their base."""
    path = directory.locate_model(name_or_path)
    if (path / ADAPTER_FILE).is_file() and not (path / "config.json").is_file():
        path = directory.locate_model(lora.read_base_model(path))
    return is_vision_language(path)


def open_policy(config: PolicyConfig, image_store: ImageStore | None = None) -> CausalLMPolicy:
    """The language policy that settings describe: a `VLMPolicy` over `pictures` where the model sees."""
    if accepts_images(config.model):
        return VLMPolicy.from_config(config, image_store)
    return CausalLMPolicy.from_config(config)
