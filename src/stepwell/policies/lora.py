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
from stepwell.core.weight_parts import Adapter, WeightParts


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
        raise ModelError("LoRA needs the package peft: pip install 'stepwell[lora]'") from error
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
    layers = _find_layers(model)
    weights = _list_base_weights(model, layers)
    for owner, layer in layers.items():
        name = f"{owner}.weight"
        for adapter in layer.active_adapters:
            weights[name] = weights[name] + layer.get_delta_weight(adapter).to(weights[name].dtype)
    return weights


def split_weights(model: Any) -> WeightParts:
    """Return the model's weights under their plain names, with the adapters as parts of their own.

    Adapters other than one plain low-rank matrix per layer are merged in instead.
    """
    layers = _find_layers(model)
    if not all(_is_plain_layer(layer) for layer in layers.values()):
        return WeightParts(merge_weights(model))
    tensors, adapters = _list_base_weights(model, layers), {}
    frozen = frozenset(tensors) - {name for name, one in model.named_parameters() if one.requires_grad}
    for owner, layer in layers.items():
        (active,) = layer.active_adapters
        adapter = Adapter(f"{owner}.lora_A.weight", f"{owner}.lora_B.weight", float(layer.scaling[active]))
        adapters[f"{owner}.weight"] = adapter
        tensors[adapter.down] = layer.lora_A[active].weight.detach()
        tensors[adapter.up] = layer.lora_B[active].weight.detach()
    return WeightParts(tensors, adapters, frozen)


def _find_layers(model: Any) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}


def _list_base_weights(model: Any, layers: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights beneath the adapters, under their plain names."""
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        owner = name
        while owner and owner not in layers:
            owner = owner.rpartition(".")[0]
        if not owner:
            weights[name] = tensor
        elif (inner := name[len(owner) + 1 :]).startswith("base_layer."):
            weights[f"{owner}.{inner.removeprefix('base_layer.')}"] = tensor
    return weights


def _is_plain_layer(layer: Any) -> bool:
    if len(layer.active_adapters) != 1 or getattr(layer, "fan_in_fan_out", False):
        return False
    (active,) = layer.active_adapters
    is_linear = active in getattr(layer, "lora_A", {}) and isinstance(layer.get_base_layer(), torch.nn.Linear)
    has_bias = is_linear and layer.lora_B[active].bias is not None
    return is_linear and not has_bias and not getattr(layer, "use_dora", {}).get(active, False)
