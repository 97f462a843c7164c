"""Choosing how a model runs, and proving the choice before the first request.

`build_runner` picks the forward (lean or the model's own), the attention (Triton or torch)
and whether decoding is captured as CUDA graphs. The self-check then runs a few tokens
through prefill and decoding and compares the logits with those of the untouched model: an
architecture whose attention or cache works in a way we do not know is refused with a clear
error and never sampled wrongly.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ConfigError, ModelError
from stepwell.engines.forward import Forward, LeanForward, ModelForward, is_lean
from stepwell.engines.kv_store import KVStore
from stepwell.engines.runner import Runner
from stepwell.engines.slots import SlotTable
from stepwell.policies import directory
from stepwell.rendering import load_tokenizer

CHECK_TOKENS = 12
CHECK_ERROR = {torch.float64: 1e-4, torch.float32: 1e-3}  # of the largest logit; 0.1 in half precision


def build_runner(model: Any, config: EngineConfig) -> Runner:
    """The runner for this model on its device, checked against the model itself."""
    device = model.device
    max_length, table = context_length(model, config), SlotTable(config.slots)
    ids = torch.arange(CHECK_TOKENS, device=device) * 7919 % model.get_input_embeddings().num_embeddings
    ids = ids[: min(CHECK_TOKENS, max_length)]
    expected = _own_logits(model, ids) if config.self_check else None
    store = KVStore(table.num_slots, max_length, device, model.dtype)
    use_triton = _use_triton(model, config)
    forward = _forward(model, config, max_length, use_triton)
    if device.type == "cuda" and config.cuda_graphs:
        from stepwell.engines.graphs import GraphRunner

        runner: Runner = GraphRunner(forward, store, table, use_triton, config.max_batch_size)
    else:
        runner = Runner(forward, store, table, use_triton)
    if expected is not None:
        _self_check(runner, ids, expected)
    return runner


def _use_triton(model: Any, config: EngineConfig) -> bool:
    """Whether the Triton kernels run; an explicit wish that cannot be met is an error."""
    reason = None
    if model.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        reason = f"they need a CUDA device, and the model is on {model.device}"
    elif model.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        reason = f"they do not compute in {model.dtype}"
    elif importlib.util.find_spec("triton") is None:
        reason = "the package triton is not installed"
    if config.attention_kernel == "triton" and reason is not None:
        raise ConfigError(f'attention_kernel="triton" asks for Triton kernels, but {reason}; use "auto"')
    wanted = config.attention_kernel == "triton"
    return wanted or (config.attention_kernel == "auto" and model.device.type == "cuda" and reason is None)


def open_model(name_or_path: str | Path, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer (None where there is none) of a built-in name or a Hugging Face directory."""
    path = directory.locate(name_or_path)
    model = directory.open_causal_lm(path, getattr(torch, dtype))
    has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    return model, load_tokenizer(path) if has_tokenizer else None


def context_length(model: Any, config: EngineConfig) -> int:
    """Longest sequence: the setting, or what the model was made for."""
    own = getattr(model.config, "max_position_embeddings", None)
    if config.max_length is None:
        if own is None:
            raise ConfigError("max_length: the model does not state max_position_embeddings; set max_length")
        return int(own)
    if own is not None and config.max_length > own:
        raise ConfigError(f"max_length is {config.max_length}, but the model's context is {own}; lower it")
    return config.max_length


def _forward(model: Any, config: EngineConfig, max_length: int, use_triton: bool) -> Forward:
    lean = is_lean(model)
    if config.forward == "lean" and not lean:
        raise ConfigError(
            f'forward="lean" covers plain Llama, Mistral, Qwen2 and Qwen3 models, not this '
            f'{type(model).__name__}; use forward="auto"'
        )
    if not lean or config.forward == "transformers":
        return ModelForward(model)
    with torch.no_grad():
        if use_triton:
            from stepwell.engines.triton_plans import TritonOps

            return LeanForward(model, max_length, TritonOps)
        return LeanForward(model, max_length)


def _own_logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """What the untouched model says of the last token.

    By its eager attention, the one that is complete: transformers' others leave out the
    softcap of Gemma 2.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids[None], use_cache=False).logits[0, -1]
    model.set_attn_implementation(before)
    return logits


def _self_check(runner: Runner, ids: torch.Tensor, expected: torch.Tensor) -> None:
    """Prefill in two runs, then decode one token, in slot 0, and compare its logits."""
    zero, last = np.zeros(1, dtype=np.int64), len(ids) - 1
    half = last // 2
    with torch.inference_mode(), runner.on_device():
        for start, end in ((0, half), (half, last)):
            if end > start:
                plan = runner.prefill_plan(zero, zero + start, zero + end - start)
                runner.forward(ids[start:end], plan.positions, plan, want_logits=False)
        plan = runner.decode_plan(zero, zero + last)
        logits = runner.forward(ids[last:], plan.positions, plan, want_logits=True)
    assert logits is not None
    scale = float(expected.abs().max())
    gap = float((logits[0].double() - expected.double()).abs().max())
    if not gap <= CHECK_ERROR.get(expected.dtype, 0.1) * max(scale, 1e-6):
        raise ModelError(
            f"the engine computes other logits than this model does (off by {gap:.3g} of {scale:.3g}): "
            "its attention or cache works in a way the engine does not know, or its weights are not finite; "
            'try forward="transformers", or another engine'
        )
