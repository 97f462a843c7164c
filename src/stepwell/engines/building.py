"""Choosing how a model runs, and proving the choice before the first request.

`build_runner` picks the forward (lean or the model's own), the attention (Triton or torch)
and whether decoding is captured as CUDA graphs. The self-check then runs a few tokens
through prefill and decoding and compares the logits with those of the untouched model: an
architecture whose attention or cache works in a way we do not know is refused with a clear
error and never sampled wrongly. Of a model that sees, a picture is among those tokens.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ConfigError, ModelError
from stepwell.core.pictures import Pictures
from stepwell.core.step import ImageSpan, TokenState
from stepwell.engines.forward import Forward, LeanForward, ModelForward, is_lean
from stepwell.engines.kv_store import KVStore
from stepwell.engines.runner import Runner
from stepwell.engines.sight import Sight
from stepwell.engines.slots import SlotTable
from stepwell.policies import directory
from stepwell.policies.vlm.vision import encode
from stepwell.rendering import load_tokenizer
from stepwell.rendering.vision import ImageFormat, is_vision_language

CHECK_TOKENS, CHECK_SIDE = 12, 32  # tokens, and pixels of a picture's side
CHECK_ERROR = {torch.float64: 1e-4, torch.float32: 1e-3}  # of the largest logit; 0.1 in half precision


def build_runner(
    model: Any,
    config: EngineConfig,
    image_format: ImageFormat | None = None,
    pictures: Pictures | None = None,
) -> Runner:
    """The runner for this model on its device, checked against the model itself.

    With an `image_format` it sees: prompts name pictures whose pixels `pictures` has.
    """
    device = model.device
    max_length, table = context_length(model, config), SlotTable(config.slots)
    check = _Check.of(model, max_length, image_format)
    expected = check.own_logits(model) if config.self_check else None
    store = KVStore(table.num_slots, max_length, device, model.dtype)
    use_triton = _use_triton(model, config)
    forward = _forward(model, config, max_length, use_triton)
    has_axes = image_format is not None and image_format.num_axes > 1  # a graph knows places alone
    if device.type == "cuda" and config.cuda_graphs and not has_axes:
        from stepwell.engines.graphs import GraphRunner

        runner: Runner = GraphRunner(forward, store, table, use_triton, config.max_batch_size)
    else:
        runner = Runner(forward, store, table, use_triton)
    look = None if image_format is None else partial(encode, model, image_format)
    if expected is not None:
        if image_format is not None and look is not None:
            runner.sight = Sight(image_format, check.pictures, look)
        _self_check(runner, check, expected)
    if image_format is not None and look is not None:
        runner.sight = Sight(image_format, Pictures() if pictures is None else pictures, look)
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
    opener = directory.open_vision_language if is_vision_language(path) else directory.open_causal_lm
    model = opener(path, getattr(torch, dtype))
    has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
    return model, load_tokenizer(path) if has_tokenizer else None


def context_length(model: Any, config: EngineConfig) -> int:
    """Longest sequence: the setting, or what the model was made for."""
    own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """The tokens of the self-check, with a picture among them where the model sees and has room."""

    state: TokenState
    pictures: Pictures
    image_format: ImageFormat | None

    @classmethod
    def of(cls, model: Any, max_length: int, image_format: ImageFormat | None) -> _Check:
        words = np.arange(CHECK_TOKENS) * 7919 % model.get_input_embeddings().num_embeddings
        pictures, spans = Pictures(), ()
        if image_format is not None:
            words = words[words != image_format.marker_id]
            side = np.arange(CHECK_SIDE, dtype=np.uint8)
            image = np.stack(np.broadcast_arrays(side * 7, side[:, None] * 5, side ^ side[:, None]), axis=-1)
            run = image_format.tokens(CHECK_SIDE, CHECK_SIDE).ids
            if len(words) + len(run) <= max_length:
                spans = (ImageSpan(pictures.add(image), 2, len(run)),)
                words = np.concatenate([words[:2], run, words[2:]])
        return cls(TokenState(words[:max_length], spans), pictures, image_format)

    def own_logits(self, model: Any) -> torch.Tensor:
        """What the untouched model says of the last token.

        By its eager attention, the one that is complete: transformers' others leave out the
        softcap of Gemma 2.
        """
        before = model.config._attn_implementation
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            logits: torch.Tensor = model(**self._inputs(model), use_cache=False).logits[0, -1]
        model.set_attn_implementation(before)
        return logits

    def _inputs(self, model: Any) -> dict[str, torch.Tensor]:
        given = {"input_ids": torch.from_numpy(self.state.prompt_ids.astype(np.int64))[None]}
        if self.image_format is None or not self.state.images:
            return {name: tensor.to(model.device) for name, tensor in given.items()}
        placed = self.image_format.placed(self.state, self.pictures)
        if self.image_format.num_axes > 1:
            own = self.image_format.positions(self.state.prompt_ids.size, placed)
            given["position_ids"] = torch.from_numpy(own)[:, None]
        arrays = self.image_format.arrays(self.pictures.get(self.state.images[0].image))
        given |= {name: torch.from_numpy(array) for name, array in arrays.items()}
        given["pixel_values"] = given["pixel_values"].to(model.dtype)
        if self.image_format.family == "idefics3":
            given["pixel_values"] = given["pixel_values"][None]
        return {name: tensor.to(model.device) for name, tensor in given.items()}


def _self_check(runner: Runner, check: _Check, expected: torch.Tensor) -> None:
    """Prefill in two runs, then decode one token, in slot 0, and compare its logits."""
    zero, last = np.zeros(1, dtype=np.int64), check.state.prompt_ids.size - 1
    ids = torch.from_numpy(check.state.prompt_ids.astype(np.int64)).to(expected.device)
    with torch.inference_mode(), runner.on_device():
        shift = 0 if runner.sight is None else runner.sight.seat(0, check.state)
        for start, end in ((0, last // 2), (last // 2, last)):
            if end > start:
                plan, positions, seen = runner.looked(zero, zero + start, zero + end - start)
                runner.forward(ids[start:end], positions, plan, want_logits=False, seen=seen)
        plan = runner.decode_plan(zero, zero + last)
        logits = runner.forward(ids[last:], plan.positions + shift, plan, want_logits=True)
    assert logits is not None
    scale = float(expected.abs().max())
    gap = float((logits[0].double() - expected.double()).abs().max())
    if not gap <= CHECK_ERROR.get(expected.dtype, 0.1) * max(scale, 1e-6):
        raise ModelError(
            f"the engine computes other logits than this model does (off by {gap:.3g} of {scale:.3g}): "
            "its attention or cache works in a way the engine does not know, or its weights are not finite; "
            'try forward="transformers", or another engine'
        )
