"""Triton kernels equal their plain-torch counterparts, on a GPU or in Triton's interpreter.

The interpreter runs where Triton is installed and TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
import torch
from tests.engines.models import generate_alone, prompts_of, small_model

from stepwell.config.engine import EngineConfig
from stepwell.core.errors import ConfigError
from stepwell.core.protocols import Request, SamplingParams
from stepwell.core.step import TokenState
from stepwell.engines.attention import AttentionSpec, DecodePlan, PrefillPlan
from stepwell.engines.embedded import EmbeddedEngine
from stepwell.engines.forward import HeadNorms, LlamaLayer, LlamaOps, Rotation
from stepwell.engines.kv_store import KVStore
from stepwell.engines.sampling import choose_tokens, hash_uniforms

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICES = [
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")),
]
SHAPES = [(4, 2, 8), (9, 3, 64), (6, 1, 48)]  # query heads, key heads, width
SPECS = [AttentionSpec(0.3), AttentionSpec(0.2, window=7), AttentionSpec(0.5, softcap=2.0)]


def filled_store(device: str, num_kv_heads: int, dim: int) -> KVStore:
    store = KVStore(6, 160, torch.device(device), torch.float32)
    store.ensure_length(160)
    store.ensure_layer(0, num_kv_heads, dim, dim)
    generator = torch.Generator().manual_seed(0)
    for storage in (store.keys(0), store.values(0)):
        storage.copy_(torch.randn(storage.shape, generator=generator))
    return store


def heads(device: str, num_tokens: int, *shapes: tuple[int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(num_tokens, h, d, generator=generator).to(device) for h, d in shapes]


def assert_close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a.cpu(), b.cpu(), atol=3e-5, rtol=3e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_processors", [1, 40])
@pytest.mark.parametrize("spec", SPECS, ids=["plain", "window", "softcap"])
@pytest.mark.parametrize("shape", SHAPES)
def test_decoding_equals_the_torch_plan(
    device: str, shape: tuple[int, int, int], spec: AttentionSpec, num_processors: int
) -> None:
    from stepwell.engines.triton_plans import TritonDecodePlan

    num_heads, num_kv_heads, dim = shape
    slots, positions = np.array([0, 2, 3, 5]), np.array([0, 150, 63, 64])
    new = heads(device, 4, (num_heads, dim), (num_kv_heads, dim), (num_kv_heads, dim))
    ours, theirs = filled_store(device, num_kv_heads, dim), filled_store(device, num_kv_heads, dim)
    plan = TritonDecodePlan(
        ours, torch.from_numpy(slots).to(device), torch.from_numpy(positions).to(device), num_processors
    )
    assert_close(
        plan.attend(0, *new, spec), DecodePlan.from_host(theirs, slots, positions).attend(0, *new, spec)
    )
    assert_close(ours.keys(0), theirs.keys(0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", SPECS, ids=["plain", "window", "softcap"])
@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_equal_the_torch_plan(device: str, shape: tuple[int, int, int], spec: AttentionSpec) -> None:
    from stepwell.engines.triton_plans import TritonPrefillPlan

    num_heads, num_kv_heads, dim = shape
    slots, starts, counts = np.array([1, 2, 4]), np.array([0, 5, 90]), np.array([130, 1, 66])
    new = heads(device, int(counts.sum()), (num_heads, dim), (num_kv_heads, dim), (num_kv_heads, dim))
    ours, theirs = filled_store(device, num_kv_heads, dim), filled_store(device, num_kv_heads, dim)
    found = TritonPrefillPlan(ours, slots, starts, counts).attend(0, *new, spec)
    assert_close(found, PrefillPlan(theirs, slots, starts, counts).attend(0, *new, spec))
    assert_close(ours.values(0), theirs.values(0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("normed", [False, True])
def test_layer_operations_equal_their_torch_counterparts(device: str, normed: bool) -> None:
    from stepwell.engines.triton_plans import TritonDecodePlan, TritonOps

    num_heads, num_kv_heads, dim, num_tokens = 6, 2, 24, 5
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    angles = draw(160, dim // 2).repeat(1, 2)
    sin = angles.sin()
    signed = torch.cat((-sin[:, : dim // 2], sin[:, dim // 2 :]), dim=-1)
    rotation = Rotation(angles.cos(), sin, signed)
    weight = draw(num_heads + num_kv_heads, dim)
    norms = HeadNorms(weight, 1e-6, weight[0], weight[-1], num_heads) if normed else None
    none: Any = None
    layer = LlamaLayer(none, none, none, norms, none, none, none, none, none, AttentionSpec(0.4))
    slots = torch.tensor([0, 1, 2, 3, 5], device=device)
    positions = torch.tensor([3, 0, 150, 64, 9], device=device)
    qkv = draw(num_tokens, num_heads + 2 * num_kv_heads, dim)
    results = []
    for ops in (LlamaOps(rotation), TritonOps(rotation)):
        store = filled_store(device, num_kv_heads, dim)
        plan: Any = (
            TritonDecodePlan(store, slots, positions, 1)
            if isinstance(ops, TritonOps)
            else DecodePlan(store, slots, positions, 151)
        )
        ops.begin(positions)
        seen = ops.attend(plan, 0, qkv.clone(), num_heads, layer)
        written = filled_store(device, num_kv_heads, dim)
        plan.store = written
        ops.write_kv(plan, 0, qkv.clone(), num_heads, layer)
        results.append((seen, store.keys(0), store.values(0), written.keys(0), written.values(0)))
    for theirs, ours in zip(*results, strict=True):
        assert_close(ours, theirs)
    x, gate_up = draw(num_tokens, 36), draw(num_tokens, 74)
    w = draw(36)
    assert_close(TritonOps(rotation).rms_norm(x, w, 1e-5), LlamaOps(rotation).rms_norm(x, w, 1e-5))
    assert_close(TritonOps(rotation).silu_mul(gate_up), LlamaOps(rotation).silu_mul(gate_up))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [50, 5000])
def test_sampling_equals_the_torch_function(device: str, vocab: int) -> None:
    from stepwell.engines.triton_sampling import sample_tokens

    num_rows = 24
    logits = 2 * torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(5)).to(device)
    temperature = torch.tensor([0.0, 0.5, 1.0, 1.6] * 6, device=device)
    top_p = torch.tensor([1.0, 1.0, 0.9, 0.3, 0.999, 0.01] * 4, device=device)
    numbers = torch.from_numpy(hash_uniforms(np.arange(num_rows), np.arange(num_rows))).to(device)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=device)
    sample_tokens(logits, temperature, top_p, numbers, tokens, logprobs)
    expected, expected_logprobs = choose_tokens(logits, temperature, top_p, numbers)
    assert (tokens == expected).float().mean() >= 23 / 24  # a sum rounded otherwise may shift one draw
    same = tokens == expected
    assert_close(logprobs[same], expected_logprobs[same])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("style", ["llama", "qwen3", "gemma2"])
def test_an_engine_on_triton_equals_generate(device: str, style: str) -> None:
    model = small_model(style).to(device)
    prompts = prompts_of([5, 70, 1])
    config = EngineConfig(attention_kernel="triton", cuda_graphs=False, max_batch_size=3)
    params = SamplingParams(max_tokens=5, temperature=0.0)
    with EmbeddedEngine(model, config=config) as engine:
        answers = engine.generate_blocking([Request(TokenState(p), params) for p in prompts])
    assert [a.action.action_ids.tolist() for a in answers] == [generate_alone(model, p, 5) for p in prompts]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter makes Triton available everywhere")
def test_triton_where_it_cannot_run_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="these need a CUDA device"):
        EmbeddedEngine(small_model("llama"), config=EngineConfig(attention_kernel="triton"))
