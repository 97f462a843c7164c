"""Chooses how a model runs, and checks the choice before the first request.

`build_runner` picks the forward pass (lean or the model's own), the attention (Triton or torch)
and whether decoding is captured as CUDA graphs; `self_check.py` then verifies the choice.
"""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ConfigError
from stepwell.core.images import ImageStore
from stepwell.engines.forward import ForwardPass, LlamaForward, ModelForward, is_lean
from stepwell.engines.image_features import ImageFeatures
from stepwell.engines.kv_store import KVStore
from stepwell.engines.runner import Runner
from stepwell.engines.self_check import EngineSelfCheck
from stepwell.engines.slots import SlotTable
from stepwell.policies import directory
from stepwell.policies.vlm.vision import encode_images
from stepwell.rendering import load_tokenizer
from stepwell.rendering.vision import ImageFormat, is_vision_language


def build_runner(
    model: Any,
    config: EngineConfig,
    image_format: ImageFormat | None = None,
    image_store: ImageStore | None = None,
) -> Runner:
    """Build the runner for this model on its device, checked against the model itself.

    With an `image_format` prompts may contain images, whose pixels come from `images`.
    """
    device = model.device
    max_length, table = choose_context_length(model, config), SlotTable(config.slots)
    check = EngineSelfCheck.for_model(model, max_length, image_format)
    expected = check.compute_own_logits(model) if config.self_check else None
    store = KVStore(table.num_slots, max_length, device, model.dtype)
    use_triton = _should_use_triton(model, config)
    forward = _build_forward(model, config, max_length, use_triton)
    has_axes = image_format is not None and image_format.num_axes > 1  # graphs support one position axis only
    if device.type == "cuda" and config.cuda_graphs and not has_axes:
        from stepwell.engines.graphs import GraphRunner

        runner: Runner = GraphRunner(forward, store, table, use_triton, config.max_batch_size)
    else:
        runner = Runner(forward, store, table, use_triton)
    encode = None if image_format is None else partial(encode_images, model, image_format)
    if image_format is not None and encode is not None:
        runner.image_features = ImageFeatures(image_format, check.image_store, encode)
    if expected is not None:
        check.compare_logits(runner, expected)
    if runner.image_features is not None:
        runner.image_features.image_store = ImageStore() if image_store is None else image_store
        runner.image_features.forget()
    return runner


def _should_use_triton(model: Any, config: EngineConfig) -> bool:
    """Decide whether to run the Triton kernels; asking for them where they cannot run is an error."""
    reason = None
    if model.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        reason = f"these need a CUDA device and the model is on {model.device}"
    elif model.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        reason = f"these do not support {model.dtype}"
    elif importlib.util.find_spec("triton") is None:
        reason = "the package triton is not installed"
    if config.attention_kernel == "triton" and reason is not None:
        raise ConfigError(f'attention_kernel="triton" asks for Triton kernels, but {reason}; use "auto"')
    wanted = config.attention_kernel == "triton"
    return wanted or (config.attention_kernel == "auto" and model.device.type == "cuda" and reason is None)


def open_model(name_or_path: str | Path, dtype: str) -> tuple[Any, Any]:
    """Open model and tokenizer (None if it has none) of a built-in name or a Hugging Face directory."""
    path = directory.locate_model(name_or_path)
    opener = directory.open_vision_language if is_vision_language(path) else directory.open_causal_lm
    model = opener(path, getattr(torch, dtype))
    has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    return model, load_tokenizer(path) if has_tokenizer else None


def choose_context_length(model: Any, config: EngineConfig) -> int:
    """Return the longest sequence: the setting, or the model's own context length."""
    own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if config.max_length is None:
        if own is None:
            raise ConfigError("max_length: the model's config has no max_position_embeddings; set max_length")
        return int(own)
    if own is not None and config.max_length > own:
        raise ConfigError(f"max_length is {config.max_length}, but the model's context is {own}; lower it")
    return config.max_length


def _build_forward(model: Any, config: EngineConfig, max_length: int, use_triton: bool) -> ForwardPass:
    lean = is_lean(model)
    if config.forward == "lean" and not lean:
        raise ConfigError(
            f'forward="lean" supports plain Llama, Mistral, Qwen2 and Qwen3 models, not this '
            f'{type(model).__name__}; use forward="auto"'
        )
    if not lean or config.forward == "transformers":
        return ModelForward(model)
    with torch.no_grad():
        if use_triton:
            from stepwell.engines.triton_plans import TritonOps

            return LlamaForward(model, max_length, TritonOps)
        return LlamaForward(model, max_length)
