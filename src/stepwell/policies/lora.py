"""LoRA through PEFT: small trained adapters on a frozen model.

The adapters are added to the model in place, so everything that runs the model runs them.
Their dropout is off, like all dropout here: logprobs must be deterministic. The frozen base
model also serves as the reference policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from stepwell.config import LoraConfig
from stepwell.core import ConfigError, ModelError


def to_peft_fields(config: LoraConfig) -> dict[str, Any]:
    """Convert our settings to the names that PEFT uses."""
    modules = config.target_modules
    return {
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": modules if isinstance(modules, str) else list(modules),
    }


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError("LoRA needs the package peft: install stepwell[lora]") from error
    return peft


def add_adapters(model: Any, settings: dict[str, Any]) -> Any:
    """Add new adapters to `model` and return PEFT's wrapper. `settings` are LoraConfig's fields."""
    peft = _import_peft()
    try:
        config = peft.LoraConfig(task_type="CAUSAL_LM", **(to_peft_fields(LoraConfig()) | settings))
        wrapper = peft.get_peft_model(model, config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"lora: {error}") from error
    return _widen_adapters(wrapper, model.dtype)


def load_adapters(model: Any, path: Path) -> Any:
    """Add saved adapters to `model`, ready for more training."""
    peft = _import_peft()
    try:
        wrapper = peft.PeftModel.from_pretrained(model, str(path), is_trainable=True)
    except Exception as error:  # PEFT and safetensors raise many kinds for a damaged directory
        raise ModelError(f"{path}: its LoRA adapters cannot be loaded: {error}") from error
    return _widen_adapters(wrapper, model.dtype)


def read_base_model(path: Path) -> str:
    """Read the name of the base model that saved adapters belong to."""
    try:
        return str(_import_peft().PeftConfig.from_pretrained(str(path)).base_model_name_or_path)
    except Exception as error:
        raise ModelError(f"{path}: adapter_config.json cannot be read: {error}") from error


def _widen_adapters(wrapper: Any, dtype: torch.dtype) -> Any:
    """Convert adapters to float32, or to float64 if the model is float64."""
    wide = torch.promote_types(dtype, torch.float32)
    for parameter in wrapper.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(wide)
    return wrapper


def merge_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the model's weights under their plain names, adapters merged in; the model is unchanged."""
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        owner = next((layer for layer in layers if name.startswith(layer + ".")), None)
        if owner is None:
            weights[name] = tensor
            continue
        inner = name[len(owner) + 1 :]
        if not inner.startswith("base_layer."):
            continue
        plain = inner.removeprefix("base_layer.")
        if plain == "weight":
            for adapter in layers[owner].active_adapters:
                tensor = tensor + layers[owner].get_delta_weight(adapter).to(tensor.dtype)
        weights[f"{owner}.{plain}"] = tensor
    return weights
