"""Fused layers and outputs made again: the same outputs and gradients as plain layers.

The kernels run on a GPU, or where Triton is installed and TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import copy
import importlib.util
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stepwell.policies import fused_layers
from stepwell.policies.fused_layers import install_fused_layers
from stepwell.policies.gate_offload import GateTraffic
from stepwell.policies.recompute import note_output, recompute_outputs

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
DEVICES = [
    pytest.param("cuda", marks=pytest.mark.gpu),
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")),
]
SHAPE: dict[str, Any] = {
    "vocab_size": 31, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE)),
}


@pytest.fixture(autouse=True)
def run_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "_RUNS_ON", ("cuda", "cpu"))


def build_pair(
    family: str, device: str, dtype: torch.dtype = torch.float32
) -> tuple[Any, Any, dict[str, int]]:
    torch.manual_seed(0)
    plain = FAMILIES[family]().to(device, dtype).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape).to(parameter))
    fused = copy.deepcopy(plain)
    return plain, fused, install_fused_layers(fused)


def run_model(model: Any, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    (logits.float().log_softmax(-1)[..., 3] ** 2).sum().backward()
    return logits.detach().float(), {name: p.grad.float() for name, p in model.named_parameters()}


def measure_gap(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-6))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["keep", "again", pytest.param("offload", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_fused_blocks_equal_plain_layers(family: str, way: str, device: str) -> None:
    plain, fused, counts = build_pair(family, device)
    assert counts[f"{family.capitalize()}DecoderLayer"] == 2
    fused_layers.plan_gates(fused, way)
    ids = torch.randint(0, 31, (2, 7), generator=torch.Generator().manual_seed(1)).to(device)
    ours, theirs = run_model(fused, ids), run_model(plain, ids)
    assert measure_gap(ours[0], theirs[0]) < 1e-5
    for name, grad in theirs[1].items():
        assert measure_gap(ours[1][name], grad) < 1e-4, name


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_without_its_gates_keeps_less(device: str) -> None:
    _, fused, _ = build_pair("llama", device)
    keeping, again = (measure_kept_bytes(fused, way, device) for way in ("keep", "again"))
    assert keeping - again == 2 * 20 * 2 * 40 * 4  # layers, tokens, gate and up, width, bytes


@pytest.mark.gpu
def test_gates_on_the_host_are_not_kept_on_the_gpu() -> None:
    model: Any = LlamaForCausalLM(LlamaConfig(**SHAPE | {"num_hidden_layers": 24})).to("cuda")
    install_fused_layers(model)
    keeping, offloading = (measure_kept_bytes(model, way, "cuda") for way in ("keep", "offload"))
    assert keeping - offloading == 18 * 20 * 2 * 40 * 4  # of 24 layers, six keep their gates


@pytest.mark.gpu
def test_gates_come_back_from_the_host_bit_for_bit_whatever_runs_meanwhile() -> None:
    traffic = GateTraffic()
    for count in (700, 300, 700):  # as microbatches do: the host's memory is used again
        sent = [torch.randn(count, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(12)]
        copies = [each.clone() for each in sent]
        entries = []
        for index in range(24):
            entries.append(traffic.register(index, sent[index] if index < 12 else None, index // 2))
            if index < 12:
                sent[index] = torch.empty(0)
            noise = torch.randn(count, 4096, device="cuda", dtype=torch.bfloat16)  # may take what was freed
            noise @ noise.t()
        for index in reversed(range(24)):
            entries[index].fetch_next()
            noise = torch.randn(count, 4096, device="cuda", dtype=torch.bfloat16)
            if index < 12:
                assert torch.equal(entries[index].receive(), copies[index]), (count, index)


@pytest.mark.gpu
def test_two_forward_passes_before_their_backward_passes_keep_their_own_gates() -> None:
    _, fused, _ = build_pair("llama", "cuda")
    fused_layers.plan_gates(fused, "offload")
    ids = [torch.randint(0, 31, (2, length), device="cuda") for length in (9, 13)]
    losses = [fused(input_ids=each, use_cache=False).logits.square().sum() for each in ids]
    fused.zero_grad()
    for loss in losses:
        loss.backward()
    together = {name: p.grad.clone() for name, p in fused.named_parameters()}
    fused.zero_grad()
    for each in ids:
        fused(input_ids=each, use_cache=False).logits.square().sum().backward()
    for name, parameter in fused.named_parameters():
        assert measure_gap(together[name], parameter.grad) < 1e-6, name


def measure_kept_bytes(model: Any, way: str, device: str) -> int:
    """Bytes that autograd keeps of a forward pass."""
    fused_layers.plan_gates(model, way)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(kept.append, lambda nothing: nothing):
        model(input_ids=torch.arange(20, device=device)[None], use_cache=False)
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in kept}.values())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_fused_layers_equal_plain_layers(family: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "USES_BLOCKS", False)
    plain, fused, counts = build_pair(family, device)
    assert sum(counts.values()) == (9 if family == "llama" else 13)  # norms, gates, attention, head norms
    ids = torch.randint(0, 31, (2, 7), generator=torch.Generator().manual_seed(1)).to(device)
    theirs = run_model(plain, ids)
    with recompute_outputs():
        recomputed = run_model(fused, ids)
    for ours in (run_model(fused, ids), recomputed):
        assert measure_gap(ours[0], theirs[0]) < 1e-5
        for name, grad in theirs[1].items():
            assert measure_gap(ours[1][name], grad) < 1e-4, name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_layer_of_every_width_of_numbers_is_fused(dtype: torch.dtype, device: str) -> None:
    _, _, counts = build_pair("llama", device, dtype)
    assert counts == {"LlamaDecoderLayer": 2, "LlamaAttention": 2, "LlamaMLP": 2, "LlamaRMSNorm": 5}


@pytest.mark.parametrize("device", DEVICES)
def test_layers_that_compute_something_else_are_left_alone(device: str) -> None:
    plain, fused, counts = build_pair("gemma2", device)
    assert "Gemma2RMSNorm" not in counts and "Gemma2MLP" not in counts
    ids = torch.arange(6, device=device)[None]
    assert measure_gap(run_model(fused, ids)[0], run_model(plain, ids)[0]) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_has_layers_and_weights_of_its_own(device: str) -> None:
    _, fused, _ = build_pair("llama", device)
    other = copy.deepcopy(fused)
    norm = other.model.layers[0].input_layernorm
    assert norm.forward.__self__ is norm
    with torch.no_grad():
        norm.weight.fill_(0.0)
    x = torch.ones(1, 1, 24, device=device)
    assert bool((norm(x) == 0).all()) and bool((fused.model.layers[0].input_layernorm(x) != 0).any())


@pytest.mark.parametrize("device", DEVICES)
def test_generation_with_a_cache_is_unchanged(device: str) -> None:
    plain, fused, _ = build_pair("llama", device)
    ids = torch.arange(3, 8, device=device)[None]
    first, second = (model.generate(ids, max_new_tokens=4, do_sample=False) for model in (plain, fused))
    assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.parametrize("uses_blocks", [True, False])
def test_bfloat16_layers_stay_near_float32(uses_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layers, "USES_BLOCKS", uses_blocks)
    plain, fused, _ = build_pair("llama", "cuda", torch.bfloat16)
    ids = torch.randint(0, 31, (2, 50), device="cuda")
    exact = run_model(copy.deepcopy(plain).float(), ids)
    ours, theirs = run_model(fused, ids), run_model(plain, ids)
    for name, grad in exact[1].items():
        assert measure_gap(ours[1][name], grad) < 1.5 * measure_gap(theirs[1][name], grad) + 0.01, name


# --- outputs that are made again --------------------------------------------------------


class Doubling(nn.Module):
    """Two readers of an output that can be made again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(5, 4), nn.Linear(5, 4)
        self.num_made = 0

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2
        note_output(doubled, lambda: self.make_again(x.detach()))
        return self.left(doubled) * self.right(doubled)

    def make_again(self, x: Tensor) -> Tensor:
        self.num_made += 1
        return x * 2


def test_an_output_with_two_readers_is_made_once() -> None:
    module, x = Doubling(), torch.randn(2, 3, 5, requires_grad=True)
    plain = torch.autograd.grad(module(x).sum(), [x, *module.parameters()])
    with recompute_outputs():
        result = module(x)
    assert module.num_made == 0
    again = torch.autograd.grad(result.sum(), [x, *module.parameters()])
    assert module.num_made == 1
    for a, b in zip(again, plain, strict=True):
        assert torch.equal(a, b)


def test_memory_of_a_dead_output_is_not_taken_for_it() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    with recompute_outputs():
        for _ in range(3):
            output = torch.randn(4, 4)
            note_output(output, lambda: torch.full((4, 4), float("nan")))
            del output
            fresh = torch.randn(4, 4)  # often in the memory of the one before
            (fresh @ weight).sum().backward()
    assert weight.grad is not None and bool(weight.grad.isfinite().all())


def test_outside_its_block_nothing_is_noted() -> None:
    module, x = Doubling(), torch.randn(2, 5)
    module(x).sum().backward()
    assert module.num_made == 0
