"""Logprobs and entropies from logits, in at least float32 and a few rows at a time.

`logits` [R, V] are the distinct rows; each action token names its row and its target. The forward pass
allocates nothing of size [R, V]. The backward pass allocates one such array (in the dtype of the logits) and
recomputes the softmax chunk by chunk.

With x = logits / temperature, p = softmax(x), lse = logsumexp(x):

    logprob of target j     x_j - lse                  gradient  onehot_j - p
    entropy                 H = lse - sum p x          gradient  -p (x - (lse - H))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Size of the float32 working copy of a chunk of logits. GPUs have more memory and a cost per launch."""


def token_scores(
    logits: Tensor,
    inverse_temperatures: Tensor,
    rows: Tensor,
    targets: Tensor,
    *,
    with_entropies: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Logprob of each (row, target) pair, and optionally the entropy of each row.

    `inverse_temperatures` is [R]; `rows` and `targets` are [A]. Returns [A] and [R].
    """
    logprobs, entropies = _TokenScores.apply(logits, inverse_temperatures, rows, targets, with_entropies)  # type: ignore[no-untyped-call]
    return logprobs, entropies if with_entropies else None


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        inverse_temperatures: Tensor,
        rows: Tensor,
        targets: Tensor,
        with_entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        scale = inverse_temperatures.to(wide)
        log_sums = torch.empty(logits.shape[0], dtype=wide, device=logits.device)
        entropies = torch.empty_like(log_sums if with_entropies else log_sums[:0])
        for chunk in _split_chunks(logits):
            scaled = logits[chunk].to(wide) * scale[chunk, None]
            log_sums[chunk] = torch.logsumexp(scaled, 1)
            if with_entropies:
                weights = (scaled - log_sums[chunk, None]).exp_()
                entropies[chunk] = log_sums[chunk] - _multiply_rows(weights, scaled)
        logprobs = logits[rows, targets].to(wide) * scale[rows] - log_sums[rows]
        ctx.with_entropies = with_entropies
        ctx.save_for_backward(logits, scale, rows, targets, log_sums, entropies)
        return logprobs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, logprob_grads: Tensor, entropy_grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, scale, rows, targets, log_sums, entropies = ctx.saved_tensors
        row_grads = torch.zeros_like(log_sums).index_add_(0, rows, logprob_grads)
        grads = torch.empty_like(logits)
        for chunk in _split_chunks(logits):
            scaled = logits[chunk].to(scale.dtype) * scale[chunk, None]
            weights = (scaled - log_sums[chunk, None]).exp_()
            pull = row_grads[chunk, None]
            if ctx.with_entropies:
                mean = log_sums[chunk] - entropies[chunk]
                pull = scaled.sub_(mean[:, None]).mul_(entropy_grads[chunk, None]).add_(pull)
            grads[chunk] = weights.mul_(pull * -scale[chunk, None])
        grads.index_put_((rows, targets), (logprob_grads * scale[rows]).to(grads.dtype), accumulate=True)
        return grads, None, None, None, None


def compute_row_kls(logits: Tensor, others: Tensor, inverse_temperatures: Tensor) -> Tensor:
    """[R]: KL of the rows' distributions to those of a reference, all logits in memory.

    For models whose head is not one product; `projection.py` needs no such memory.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scale = inverse_temperatures.to(wide)[:, None]
    ours, theirs = ((side.to(wide) * scale).log_softmax(1) for side in (logits, others.detach()))
    weights = ours.exp()
    gaps = torch.where(weights > 0, ours - theirs, 0)  # before the product: its gradient may have no 0 * inf
    return (weights * gaps).sum(1)


def _multiply_rows(a: Tensor, b: Tensor) -> Tensor:
    """Row-wise inner products, with 0 * -inf = 0: a logit of -inf adds nothing to the entropy."""
    return torch.where(a > 0, a * b, 0).sum(1)


def _split_chunks(logits: Tensor) -> list[slice]:
    size = CHUNK_BYTES.get(logits.device.type, CHUNK_BYTES["cpu"])
    rows = max(1, size // max(1, logits.shape[1] * 4))
    return [slice(start, start + rows) for start in range(0, logits.shape[0], rows)]
