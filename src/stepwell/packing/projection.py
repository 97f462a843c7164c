"""Logprobs, entropies and full KL straight from hidden states: the logits of a few rows, never of all.

`hidden` [R, H] are the distinct rows and `weight` [V, H] is the head. The forward pass computes the logits of
a chunk of rows, reads from them what `scores.py` defines, and forgets them. The backward pass computes them
again, chunk by chunk, and turns them in place into their own gradient. Between the passes two numbers per row
are kept instead of V. The price is one more product with the head, so logits that fit `KEPT_BYTES` are kept.

Given the rows of a frozen reference, each chunk computes its logits too. With x and y the logits of policy
and reference divided by the temperature, p = softmax(x) and g = sum p (x - y):

    KL(policy || reference) = g - lse(x) + lse(y)      gradient by x: p (x - y - g)

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
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from stepwell.packing import projection_torch
from stepwell.packing.scores import sort_tokens, token_scores

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 28}
"""Size of the logits of a chunk."""
KEPT_BYTES = {"cpu": 512 << 20, "cuda": 0}
"""Logits up to this size are kept for the backward pass instead of computed again. On a GPU the product is
cheaper than the kernels that plain torch needs."""


class HeadInputs(NamedTuple):
    """The rows [R, H] of hidden states that a head [V, H] turns into logits."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    def compute_logits(self, part: slice) -> Tensor:
        """The logits of some rows."""
        return F.linear(self.hidden[part], self.weight, self.bias)


def project_scores(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    inverse_temperatures: Tensor,
    rows: Tensor,
    targets: Tensor,
    *,
    with_entropies: bool = True,
    reference: HeadInputs | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Logprob of each (row, target) pair; optionally the entropy of each row, and its KL to a reference.

    The logits are `hidden @ weight.T + bias`; all else is as in `token_scores`.
    """
    size = hidden.shape[0] * weight.shape[0] * weight.element_size()
    if reference is None and size <= KEPT_BYTES.get(hidden.device.type, KEPT_BYTES["cpu"]):
        logits = F.linear(hidden, weight, bias)
        found = token_scores(logits, inverse_temperatures, rows, targets, with_entropies=with_entropies)
        return *found, None
    order, starts = sort_tokens(rows, hidden.shape[0])
    logprobs, entropies, kls = _ProjectedScores.apply(  # type: ignore[no-untyped-call]
        hidden, weight, bias, inverse_temperatures, order, starts, targets, with_entropies, *reference or ()
    )
    return logprobs, entropies if with_entropies else None, None if reference is None else kls


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
        *frozen: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        reference = HeadInputs(*frozen) if frozen else None
        wide = torch.promote_types(hidden.dtype, torch.float32)
        scale = inverse_temperatures.to(wide)
        log_sums = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        means = torch.empty_like(log_sums)
        gaps, kls = torch.empty_like(log_sums), torch.empty_like(log_sums)
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
            if reference is not None:
                others = reference.compute_logits(part)
                backend.compare_rows(logits, others, scale[part], log_sums[part], gaps[part], kls[part])
        ctx.with_entropies = with_entropies
        ctx.save_for_backward(
            hidden, weight, bias, scale, order, starts, targets, log_sums, means, gaps, *frozen
        )
        return logprobs, log_sums - means if with_entropies else log_sums[:0], kls if frozen else kls[:0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, logprob_grads: Tensor, entropy_grads: Tensor, kl_grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, scale, order, starts, targets, log_sums, means, gaps, *frozen = (
            ctx.saved_tensors
        )
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        hidden_grads = torch.empty_like(hidden) if wants_hidden else None
        weight_grads: Tensor | None = None
        bias_grads = torch.zeros_like(bias, dtype=log_sums.dtype) if wants_bias else None
        backend = _find_backend(hidden)
        for part in _iterate_chunks(hidden, weight):
            logits = F.linear(hidden[part], weight, bias)
            pulls = entropy_grads[part] if ctx.with_entropies else None
            ends = starts[part.start : part.stop + 1]
            comparison = None
            if frozen:
                comparison = HeadInputs(*frozen).compute_logits(part), gaps[part], kl_grads[part]
            grads = backend.pull_rows(
                logits,
                scale[part],
                ends,
                order,
                targets,
                log_sums[part],
                means[part],
                logprob_grads,
                pulls,
                comparison,
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
            *[None] * (5 + len(frozen)),
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
