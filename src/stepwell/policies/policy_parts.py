"""Opens the parts of a policy: the model with its adapters, and its critic. Dropout is disabled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from stepwell.core import ConfigError, WeightsError
from stepwell.policies import directory, lora
from stepwell.policies.critic import CriticKind, CriticLink, CriticModel, ValueHead
from stepwell.policies.float64 import take_gradients_in_float64
from stepwell.policies.forward import find_backbone
from stepwell.policies.model_resolver import ADAPTER_FILE

OpenModel = Callable[[Path, torch.dtype], Any]


def open_actor(
    path: Path, dtype: torch.dtype, settings: dict[str, Any] | None, open_model: OpenModel
) -> tuple[Any, Any | None]:
    """Open the model in `path` with its adapters: saved ones, new ones, or none."""
    if (path / ADAPTER_FILE).is_file():
        if settings is not None:
            raise ConfigError(f"{path} already has LoRA adapters; leave out `lora` to continue training them")
        model = open_model(directory.locate_model(lora.read_base_model(path)), dtype)
        return model, lora.load_adapters(model, path)
    model = open_model(path, dtype)
    return model, None if settings is None else lora.add_adapters(model, settings)


def open_reference(
    model: Any, wanted: bool | str | Path, dtype: torch.dtype, open_model: OpenModel
) -> Any | None:
    """Freeze a copy of the model (True), or the model in another directory; False gives None."""
    if wanted is False:
        return None
    frozen = copy.deepcopy(model) if wanted is True else open_model(directory.locate_model(wanted), dtype)
    return frozen.requires_grad_(False)


def open_critic(
    path: Path, model: Any, wanted: CriticKind | None, dtype: torch.dtype, device: torch.device
) -> CriticModel | None:
    """Open the saved critic, create a new one, or return None."""
    written = directory.read_policy_file(path)
    saved = written["critic"]
    kind = wanted or saved
    if kind is None:
        return None
    if kind not in ("shared", "own"):
        raise ConfigError(f"critic must be 'shared', 'own' or None, got {kind!r}")
    if saved is not None and saved != kind:
        raise ConfigError(f"{path} has a critic of kind {saved!r}; critic={kind!r} would discard it")
    if saved is None:
        return make_critic(model, kind, dtype).to(device)
    return _load_critic(path, "critic", model, kind, dtype, written["critic_link"]).to(device)


def open_instruction_critic(
    path: Path, model: Any, dtype: torch.dtype, device: torch.device
) -> CriticModel | None:
    """Open the saved critic of instructions; None if there is none."""
    written = directory.read_policy_file(path)
    if not written["instruction_critic"]:
        return None
    kind, link = written["critic"], written["critic_link"]
    return _load_critic(path, "instruction_critic", model, kind, dtype, link).to(device)


def make_critic(
    model: Any, kind: CriticKind, dtype: torch.dtype, link: CriticLink | None = None
) -> CriticModel:
    """Create a new critic for a model; an own one begins with the model's backbone."""
    head = ValueHead(model.config.get_text_config().hidden_size, dtype)
    return CriticModel(head, _copy_plain_backbone(model) if kind == "own" else None, link)


def _load_critic(
    path: Path, name: str, model: Any, kind: CriticKind, dtype: torch.dtype, link: CriticLink | None
) -> CriticModel:
    head_file, folder = directory.CRITIC_FILES[name]
    head = ValueHead(model.config.get_text_config().hidden_size, dtype)
    saved, own = directory.read_head(path, name), head.state_dict()
    if saved.keys() != own.keys() or any(saved[key].shape != own[key].shape for key in own):
        raise WeightsError(f"{path / head_file} belongs to another model; save the policy again")
    head.load_state_dict(saved)
    return CriticModel(head, directory.open_backbone(path / folder, dtype) if kind == "own" else None, link)


def _copy_plain_backbone(model: Any) -> Any:
    """Copy the model's backbone without adapters, as a trainable model."""
    inner = find_backbone(model)
    if not any(hasattr(module, "base_layer") for module in inner.modules()):
        return copy.deepcopy(inner).requires_grad_(True)
    plain = type(inner)(copy.deepcopy(inner.config)).to(inner.dtype)
    weights = {name.replace(".base_layer", ""): weight for name, weight in inner.state_dict().items()}
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    return plain.requires_grad_(True)


def disable_dropout(model: Any) -> None:
    """Disable all dropout, and compute true float64 gradients in float64 models."""
    model.eval()
    for module in model.modules():
        for name, value in vars(module).items():
            is_rate = isinstance(value, float) and (
                "drop" in name or (name == "p" and isinstance(module, nn.Dropout))
            )
            if is_rate:
                setattr(module, name, 0.0)
    if model.dtype is torch.float64:
        take_gradients_in_float64(model)


def checkpoint_gradients(model: Any) -> None:
    """Keep only layer inputs in the forward pass; the backward pass computes the rest again."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.training = True  # only the layer itself: its inner modules stay without dropout
