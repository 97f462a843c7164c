"""Puts fused kernels into the layers of a model: norms, gated products and rotary positions.

Layers of many families share three parts: a root-mean-square norm, `silu(gate) * up`, and heads that are
rotated before attention. `install_fused_layers` replaces the forward method of each such module by one that
calls a kernel of `layer_kernels.py`. Weights, names and projections stay as they are, so adapters,
checkpoints and engines see no difference.

There is no list of supported models. A module is taken for a part by the names of its weights. Then a probe
runs one module of each class both ways on random inputs, forward and backward; a class that computes
something else (a norm with another offset, another activation) is left alone.

Invariants
* Outside CUDA, and with a cache (generation), every module does what it did before.
* Inside `recompute_outputs` the outputs of norms and gates are not kept for the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.policies.activations import count_offloaded
from stepwell.policies.fused_blocks import GatePlan, attend_heads, has_block_form, run_fused_block
from stepwell.policies.gate_offload import GateTraffic
from stepwell.policies.recompute import note_output

IS_ENABLED = True
"""Whether policies use fused layers."""
USES_BLOCKS = True
"""Whether layers of the usual form run as a whole (`fused_blocks.py`) instead of module by module."""
_RUNS_ON = ("cuda",)
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 3e-2}
Forward = Callable[..., Any]


def install_fused_layers(model: nn.Module) -> dict[str, int]:
    """Install what this model can use. Returns how many modules of each class were changed."""
    counts: dict[str, int] = {}
    if find_spec("triton") is None:
        return counts
    is_good: dict[tuple[type, str], bool] = {}
    for module in list(model.modules()):
        forward = _find_forward(module)
        if forward is None or "forward" in vars(module):
            continue
        key = (type(module), forward.__name__)
        if key not in is_good:
            is_good[key] = _agrees_with(module, forward)
        if is_good[key]:
            module.forward = MethodType(forward, module)
            counts[type(module).__name__] = counts.get(type(module).__name__, 0) + 1
    return counts


def has_fused_blocks(model: nn.Module) -> bool:
    """Whether the layers of a model run as fused blocks."""
    return any(
        getattr(vars(each).get("forward"), "__func__", None) is run_fused_block for each in model.modules()
    )


def plan_gates(model: nn.Module, way: str) -> None:
    """What becomes of gate and up of the fused layers until the backward pass.

    `keep` and `again` (made again) hold for all layers; `offload` divides the layers (`count_offloaded`).
    Most memory is taken at the last layer: the last copies must have left by then.
    """
    layers = [module for module in model.modules() if has_block_form(module)]
    offloaded, again, _ = count_offloaded(len(layers))
    traffic = GateTraffic() if way == "offload" else None
    for index, layer in enumerate(layers):
        own = way
        if traffic is not None and index >= offloaded:
            own = "again" if index < offloaded + again else "keep"
        # copies that have ended when this layer has run: two fewer than a bus can carry by then; at last all
        done = max(index * offloaded // len(layers) - 2, offloaded - 2 * (len(layers) - 2 - index), 0)
        layer.gate_plan = GatePlan(own, index, traffic, min(done, offloaded))  # type: ignore[assignment]


def _find_forward(module: nn.Module) -> Forward | None:
    """The fused method for this module, by the names of what it holds."""
    weight = next(module.parameters(), None)
    if weight is None or weight.device.type not in _RUNS_ON or weight.dtype not in _TOLERANCE:
        return None
    if USES_BLOCKS and has_block_form(module):
        return run_fused_block
    names = {name for name, _ in module.named_children()} | set(vars(module))
    if {"q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling", "config"} <= names:
        return _attend_fused
    if {"gate_proj", "up_proj", "down_proj", "act_fn"} <= names:
        return _run_gated_mlp
    if not list(module.children()) and {"variance_epsilon"} <= names and weight.ndim == 1:
        return _normalize_fused
    return None


# --- the methods ------------------------------------------------------------------------


def _normalize_fused(self: Any, hidden_states: Tensor) -> Tensor:
    if hidden_states.dtype is not self.weight.dtype:
        return type(self).forward(self, hidden_states)  # type: ignore[no-any-return]
    normed, scales = _Norm.apply(hidden_states, self.weight, self.variance_epsilon)  # type: ignore[no-untyped-call]
    note_output(normed, partial(_normalize_again, hidden_states.detach(), self.weight.detach(), scales))
    return normed  # type: ignore[no-any-return]


def _normalize_again(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    from stepwell.policies.layer_kernels import scale_rows

    return scale_rows(x.reshape(-1, x.shape[-1]).contiguous(), weight, scales)


def _run_gated_mlp(self: Any, x: Tensor) -> Tensor:
    gate, up = self.gate_proj(x), self.up_proj(x)
    product: Tensor = _GatedProduct.apply(gate, up)  # type: ignore[no-untyped-call]
    note_output(product, partial(_multiply_again, gate.detach(), up.detach()))
    return self.down_proj(product)  # type: ignore[no-any-return]


def _multiply_again(gate: Tensor, up: Tensor) -> Tensor:
    from stepwell.policies.layer_kernels import multiply_gate

    return multiply_gate(gate.contiguous(), up.contiguous())


def _attend_fused(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    attention_mask: Any = None,
    past_key_values: Any = None,
    **others: Any,
) -> tuple[Tensor, Any]:
    rotation = position_embeddings
    is_plain = rotation is not None and rotation[0].ndim == 3 and rotation[0].shape[-1] == self.head_dim
    if past_key_values is not None or not is_plain:
        return type(self).forward(  # type: ignore[no-any-return]
            self, hidden_states, rotation, attention_mask, past_key_values=past_key_values, **others
        )
    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    query, key, value = (
        project(hidden_states).view(shape) for project in (self.q_proj, self.k_proj, self.v_proj)
    )
    if hasattr(self, "q_norm"):
        query, key = self.q_norm(query), self.k_norm(key)
    query, key = (_Rotation.apply(heads, *(rotation or ())) for heads in (query, key))  # type: ignore[no-untyped-call]
    attended = attend_heads(self, [query, key, value], attention_mask, None, others)
    return self.o_proj(attended.contiguous()), None


# --- their gradients --------------------------------------------------------------------


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        from stepwell.policies.layer_kernels import normalize_rows

        rows = x.reshape(-1, x.shape[-1]).contiguous()
        out, scales = normalize_rows(rows, weight, eps)
        ctx.save_for_backward(rows, weight, scales)
        ctx.mark_non_differentiable(scales)
        return out.view(x.shape), scales

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grads: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        from stepwell.policies.layer_kernels import pull_norm

        rows, weight, scales = ctx.saved_tensors
        x_grads, weight_grads = pull_norm(grads.reshape(rows.shape).contiguous(), rows, weight, scales)
        return x_grads.view(grads.shape), weight_grads, None


class _GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        from stepwell.policies.layer_kernels import multiply_gate

        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        return multiply_gate(gate, up)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor]:
        from stepwell.policies.layer_kernels import pull_gate

        return pull_gate(grads.contiguous(), *ctx.saved_tensors)


class _Rotation(torch.autograd.Function):
    """Rotates [batch, tokens, heads, D] by cos and sin [1 or batch, tokens, D]."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        angles = [side.reshape(-1, side.shape[-1]).contiguous() for side in (cos, sin)]
        ctx.save_for_backward(*angles)
        return _rotate(heads, *angles, is_backward=False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        return _rotate(grads, *ctx.saved_tensors, is_backward=True), None, None


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor, *, is_backward: bool) -> Tensor:
    from stepwell.policies.layer_kernels import rotate_heads

    flat = heads.reshape(-1, *heads.shape[2:]).contiguous()
    return rotate_heads(flat, cos, sin, is_backward=is_backward).view(heads.shape)


# --- the probe --------------------------------------------------------------------------


def _agrees_with(module: nn.Module, forward: Forward) -> bool:
    """Whether the fused method gives what the module's own gives on random inputs, and the same gradient."""
    theirs = partial(type(module).forward, module)
    try:
        arguments = _draw_arguments(module, forward, torch.Generator().manual_seed(0))
        ours, own = (_run_both_passes(run, arguments) for run in (partial(forward, module), theirs))
    except Exception:  # any failure of a foreign module in the probe means: leave it alone
        return False
    return all(_measure_gap(a, b) <= _TOLERANCE[b.dtype] for a, b in zip(ours, own, strict=True))


@torch.enable_grad()
def _run_both_passes(run: Forward, arguments: dict[str, Any]) -> list[Tensor]:
    """The output, and the gradient of the first argument."""
    name = next(iter(arguments))
    leaf = arguments[name].detach().requires_grad_()
    output = run(**(arguments | {name: leaf}))
    found: Tensor = output[0] if isinstance(output, tuple) else output
    pull = torch.linspace(-1, 1, found.numel(), device=found.device).to(found.dtype).view(found.shape)
    return [found.detach(), *torch.autograd.grad(found, leaf, pull)]


def _measure_gap(ours: Tensor, own: Tensor) -> float:
    return float((ours.float() - own.float()).norm() / own.float().norm())


def _draw_arguments(module: Any, forward: Forward, draw: torch.Generator) -> dict[str, Any]:
    weight = next(module.parameters())

    def draw_normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(weight.device, weight.dtype)

    if forward is _normalize_fused:
        return {"hidden_states": draw_normal(1, 5, weight.shape[0])}
    if forward is _run_gated_mlp:
        return {"x": draw_normal(1, 5, module.gate_proj.in_features)}
    attention = module.self_attn if forward is run_fused_block else module
    angles = torch.rand(1, 5, attention.head_dim // 2, generator=draw).repeat(1, 1, 2)
    rotation = tuple(side.to(weight.device, weight.dtype) for side in (angles.cos(), angles.sin()))
    hidden = draw_normal(1, 5, attention.q_proj.in_features)
    return {"hidden_states": hidden, "position_embeddings": rotation, "attention_mask": None}
