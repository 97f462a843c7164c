"""Whole decoder layers as three operations with gradients of their own, for training on a GPU.

A layer of most families is `h += attend(rotate(project(norm(h))))`, then `h += mlp(norm(h))`. Module by
module this is some thirty kernels and as many nodes of autograd. Here it is:

| operation | forward | kept for the backward pass |
|---|---|---|
| `_RotatedProjections` | norm, one product for query, key and value, rotation in place | its input |
| attention | whatever the model uses | query, key, value, output |
| `_GatedBlock` | norm, one product for gate and up, gate, product with residual | its input, gate and up |

Norms and gated products are made again in the backward pass. A layer's `GatePlan` says what becomes of the
product for gate and up: it is kept, it is made again too (which halves what a layer keeps for a sixth more
arithmetic in its products), or it waits in the host's memory (`gate_offload.py`).
The gradient of a residual is added where the gradient of its norm is computed.

`fused_layers.py` finds layers that have this form and probes them; all others keep their modules.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from stepwell.policies.gate_offload import GateEntry, GateTraffic


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What becomes of a layer's gate and up until its backward pass: keep, again or offload."""

    way: str = "keep"
    index: int = 0
    traffic: GateTraffic | None = None
    free_before: int = 0
    """When this layer has run forward, gates of layers below this one have left for the host."""


KEEP_GATES = GatePlan()
_CHILDREN = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


def has_block_form(module: Any) -> bool:
    """Whether a module looks like a layer that `run_fused_block` can run; a probe must confirm it."""
    children = {name for name, _ in module.named_children()}
    if children != _CHILDREN:
        return False
    attention, mlp = module.self_attn, module.mlp
    linear: list[Any] = [getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    gated: list[Any] = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if any(type(part) is not nn.Linear for part in (*linear, *gated)) or hasattr(attention, "q_norm"):
        return False
    if any(part.bias is not None for part in (*gated, linear[3])):
        return False
    if len({part.bias is None for part in linear[:3]}) != 1 or not hasattr(attention, "scaling"):
        return False
    norms = (module.input_layernorm, module.post_attention_layernorm)
    return all(hasattr(norm, "variance_epsilon") and norm.weight.ndim == 1 for norm in norms)


def run_fused_block(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Any = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    use_cache: bool | None = False,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **others: Any,
) -> Tensor:
    """The forward method of a fused layer."""
    attention, mlp = self.self_attn, self.mlp
    rotation, dtype = position_embeddings, attention.q_proj.weight.dtype
    is_plain = rotation is not None and rotation[0].ndim == 3 and rotation[0].shape[-1] == attention.head_dim
    if past_key_values is not None or not is_plain or hidden_states.dtype is not dtype:
        return type(self).forward(  # type: ignore[no-any-return]
            self, hidden_states, attention_mask, position_ids, past_key_values, use_cache, rotation, **others
        )
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    norm = self.input_layernorm
    *heads, residual = _RotatedProjections.apply(  # type: ignore[no-untyped-call]
        hidden_states,
        norm.weight,
        norm.variance_epsilon,
        *(rotation or ()),
        *(part.weight for part in projections),
        *(part.bias for part in projections),
    )
    attended = attend_heads(attention, heads, attention_mask, position_ids, others)
    shape, width = hidden_states.shape, hidden_states.shape[-1]
    rows = torch.addmm(residual.view(-1, width), attended.flatten(0, -2), attention.o_proj.weight.t())
    norm = self.post_attention_layernorm
    output: Tensor = _GatedBlock.apply(  # type: ignore[no-untyped-call]
        rows,
        norm.weight,
        norm.variance_epsilon,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
        getattr(self, "gate_plan", KEEP_GATES),
        torch.is_grad_enabled(),
    )
    return output.view(shape)


def attend_heads(
    attention: Any, heads: list[Tensor], mask: Any, positions: Any, others: dict[str, Any]
) -> Tensor:
    """Attention of [batch, tokens, heads, D] as the model does it: [batch, tokens, heads * D]."""
    if hasattr(attention, "sliding_window"):
        others = {"sliding_window": attention.sliding_window, **others}
    if positions is not None:
        others = {"position_ids": positions, **others}
    eager: Any = getattr(sys.modules[type(attention).__module__], "eager_attention_forward", None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager)
    sides = (side.transpose(1, 2) for side in heads)
    output, _ = attend(attention, *sides, mask, dropout=0.0, scaling=attention.scaling, **others)
    result: Tensor = output.flatten(2)
    return result


class _RotatedProjections(torch.autograd.Function):
    """Query, key and value of normed rows, the first two rotated, and the rows again for the residual."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, scale: Tensor, eps: float, cos: Tensor, sin: Tensor, *parts: Tensor | None
    ) -> tuple[Tensor, ...]:
        from stepwell.policies.layer_kernels import normalize_rows, rotate_heads

        weights, biases = parts[:3], parts[3:]
        rows = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        normed, scales = normalize_rows(rows, scale, eps)
        bias = None if biases[0] is None else torch.cat(biases)  # type: ignore[arg-type]
        angles = [side.reshape(-1, side.shape[-1]).contiguous() for side in (cos, sin)]
        size = cos.shape[-1]
        projected = F.linear(normed, torch.cat(weights), bias)  # type: ignore[arg-type]
        heads = projected.view(rows.shape[0], -1, size)
        counts = [weight.shape[0] // size for weight in weights]  # type: ignore[union-attr]
        rotated = heads[:, : counts[0] + counts[1]]
        rotate_heads(rotated, *angles, out=rotated)
        ctx.save_for_backward(rows, scale, scales, *angles, *weights)
        sides = torch.split(heads.view(*hidden.shape[:-1], *heads.shape[1:]), counts, -2)
        return *sides, hidden.view_as(hidden)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        from stepwell.policies.layer_kernels import pull_norm, rotate_heads, scale_rows

        rows, scale, scales, cos, sin, *weights = ctx.saved_tensors
        *sides, residual = outer
        size, count = cos.shape[-1], rows.shape[0]
        counts = [weight.shape[0] // size for weight in weights]
        grads = rows.new_empty(count, sum(counts), size)
        query, key, value = grads.split(counts, 1)
        for side, to in zip(sides[:2], (query, key), strict=True):
            rotate_heads(side.reshape(count, -1, size).contiguous(), cos, sin, is_backward=True, out=to)
        value.copy_(sides[2].reshape(count, -1, size))
        flat = grads.flatten(1)
        weight_grads: list[Tensor | None] = [None] * 3
        if any(ctx.needs_input_grad[5:8]):
            merged = flat.t() @ scale_rows(rows, scale, scales)
            weight_grads = list(merged.split([weight.shape[0] for weight in weights]))
        bias_grads: list[Tensor | None] = [None] * 3
        if any(ctx.needs_input_grad[8:]):
            sums = flat.sum(0, dtype=torch.float32).to(flat.dtype)
            bias_grads = list(sums.split([weight.shape[0] for weight in weights]))
        pulled = flat @ torch.cat(weights)
        added = residual.reshape(rows.shape).contiguous()
        row_grads, scale_grads = pull_norm(pulled, rows, scale, scales, added)
        return row_grads.view(residual.shape), scale_grads, None, None, None, *weight_grads, *bias_grads


class _GatedBlock(torch.autograd.Function):
    """rows + down(silu(gate(norm(rows))) * up(norm(rows)))."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        scale: Tensor,
        eps: float,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
        plan: GatePlan,
        has_backward: bool,
    ) -> Tensor:
        from stepwell.policies.layer_kernels import multiply_halves, normalize_rows

        rows = rows.contiguous()
        normed, scales = normalize_rows(rows, scale, eps)
        halves = normed @ torch.cat([gate, up]).t()
        kept = [halves] if plan.way == "keep" else []
        ctx.save_for_backward(rows, scale, scales, gate, up, down, *kept)
        ctx.entry = None
        if plan.traffic is not None and has_backward:
            leaving = halves if plan.way == "offload" else None
            ctx.entry = plan.traffic.register(plan.index, leaving, plan.free_before)
        return torch.addmm(rows, multiply_halves(halves), down.t())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        from stepwell.policies.layer_kernels import pull_halves, pull_norm, scale_rows

        rows, scale, scales, gate, up, down, *kept = ctx.saved_tensors
        entry: GateEntry | None = ctx.entry
        ctx.entry = None
        if entry is not None:
            entry.fetch_next()
        outer = outer.contiguous()
        merged = torch.cat([gate, up])
        normed: Tensor | None = None
        if kept:
            halves = kept[0]
            torch.autograd.graph.increment_version(halves)  # so that a second backward pass is refused
        elif entry is not None and entry.is_away:
            halves = entry.receive()
        else:
            normed = scale_rows(rows, scale, scales)
            halves = normed @ merged.t()
        product = outer @ down  # its gradient first, then the product itself
        half_grads = pull_halves(product, halves, halves)  # in place: nobody reads the gates again
        down_grads = outer.t() @ product if ctx.needs_input_grad[5] else None
        del product, halves, kept
        normed = scale_rows(rows, scale, scales) if normed is None else normed
        gate_grads: Tensor | None = None
        up_grads: Tensor | None = None
        if ctx.needs_input_grad[3] or ctx.needs_input_grad[4]:
            gate_grads, up_grads = (half_grads.t() @ normed).chunk(2)
        row_grads, scale_grads = pull_norm(half_grads @ merged, rows, scale, scales, outer)
        return row_grads, scale_grads, None, gate_grads, up_grads, down_grads, None, None
