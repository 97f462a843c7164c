"""Logprobs and entropies straight from hidden states: the logits of a few rows at a time, never of all.

`hidden` [R, H] are the distinct rows and `weight` [V, H] is the head. The forward pass computes the logits of
a chunk of rows, reads from them what `scores.py` defines, and forgets them. The backward pass computes them
again, chunk by chunk, and turns them in place into their own gradient. Between the passes two numbers per row
are kept instead of V. The price is one more product with the head, so logits that fit `KEPT_BYTES` are kept.

On CUDA one kernel reads a chunk in each pass (`projection_cuda.py`). Elsewhere the same sums are plain torch.

Invariants
* Logits are rounded as the head itself rounds them (to the dtype of the weights); everything after is at
  least float32.
* Gradients of the head's weights are summed over chunks in at least float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stepwell.packing import projection_torch
from stepwell.packing.scores import token_scores

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 29}
"""Size of the logits of a chunk."""
KEPT_BYTES = {"cpu": 512 << 20, "cuda": 0}
"""Logits up to this size are kept for the backward pass instead of computed again. On a GPU the product is
cheaper than the kernels that plain torch needs."""


def project_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inverse_temperatures: Tensor,
    rows: Tensor,
    targets: Tensor,
    *,
    with_entropies: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Logprob of each (row, target) pair, and optionally the entropy of each row.

    The logits are `hidden @ weight.T + bias`; all else is as in `token_scores`.
    """
    size = hidden.shape[0] * weight.shape[0] * weight.element_size()
    if size <= KEPT_BYTES.get(hidden.device.type, KEPT_BYTES["cpu"]):
        logits = F.linear(hidden, weight, bias)
        return token_scores(logits, inverse_temperatures, rows, targets, with_entropies=with_entropies)
    order = rows.argsort(stable=True)
    places = torch.arange(hidden.shape[0] + 1, device=rows.device)
    starts = torch.searchsorted(rows[order], places)
    logprobs, entropies = _ProjectedScores.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, inverse_temperatures, order, starts, targets, with_entropies
    )
    return logprobs, entropies if with_entropies else None


class _ProjectedScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        inverse_temperatures: Tensor,
        order: Tensor,
        starts: Tensor,
        targets: Tensor,
        with_entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        scale = inverse_temperatures.to(wide)
        log_sums = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        means = torch.empty_like(log_sums)
        logprobs = torch.empty(targets.shape, dtype=wide, device=hidden.device)
        backend = _find_backend(hidden)
        for part in _iterate_chunks(hidden, weight):
            logits = F.linear(hidden[part], weight, bias)
            ends = starts[part.start : part.stop + 1]
            backend.score_rows(
                logits,
                scale[part],
                ends,
                order,
                targets,
                logprobs,
                log_sums[part],
                means[part],
                with_means=with_entropies,
            )
        ctx.with_entropies = with_entropies
        ctx.save_for_backward(hidden, weight, bias, scale, order, starts, targets, log_sums, means)
        return logprobs, (log_sums - means if with_entropies else log_sums[:0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, logprob_grads: Tensor, entropy_grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, scale, order, starts, targets, log_sums, means = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        hidden_grads = torch.empty_like(hidden) if wants_hidden else None
        weight_grads: Tensor | None = None
        bias_grads = torch.zeros_like(bias, dtype=log_sums.dtype) if wants_bias else None
        backend = _find_backend(hidden)
        for part in _iterate_chunks(hidden, weight):
            logits = F.linear(hidden[part], weight, bias)
            pulls = entropy_grads[part] if ctx.with_entropies else None
            ends = starts[part.start : part.stop + 1]
            grads = backend.pull_rows(
                logits, scale[part], ends, order, targets, log_sums[part], means[part], logprob_grads, pulls
            )
            if hidden_grads is not None:
                torch.mm(grads, weight, out=hidden_grads[part])
            if wants_weight:
                weight_grads = _add_product(weight_grads, grads, hidden[part], log_sums.dtype)
            if bias_grads is not None:
                bias_grads += grads.sum(0, dtype=bias_grads.dtype)
        return (
            hidden_grads,
            None if weight_grads is None else weight_grads.to(weight.dtype),
            None if bias_grads is None else bias_grads.to(bias.dtype),
            *[None] * 5,
        )


def _add_product(total: Tensor | None, grads: Tensor, hidden: Tensor, wide: torch.dtype) -> Tensor:
    """total + grads.T @ hidden; only a single product stays in its own dtype."""
    if total is None:
        return grads.mT @ hidden
    if total.dtype is not wide:
        total = total.to(wide)
    return total.addmm_(grads.mT, hidden) if grads.dtype is wide else total.add_(grads.mT @ hidden)


def _iterate_chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Chunks of rows of about equal size."""
    count = hidden.shape[0]
    size = CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"])
    most = max(1, size // (weight.shape[0] * weight.element_size()))
    rows = -(-count // -(-count // most))
    for start in range(0, count, rows):
        yield slice(start, min(start + rows, count))


def _find_backend(hidden: Tensor) -> ModuleType:
    if not hidden.is_cuda or hidden.dtype is torch.float64 or find_spec("triton") is None:
        return projection_torch
    from stepwell.packing import projection_cuda

    return projection_cuda
