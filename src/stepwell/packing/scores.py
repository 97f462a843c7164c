"""Logprobs and entropies from logits, in at least float32 and a few rows at a time.

`logits` [R, V] are the distinct rows; each action token names its row and its target. The forward pass
allocates nothing of size [R, V]. The backward pass allocates one such array (in the dtype of the logits) and
recomputes the softmax chunk by chunk.

With x = logits / temperature, p = softmax(x), lse = logsumexp(x):

    logprob of target j     x_j - lse                  gradient  onehot_j - p
    entropy                 H = lse - sum p x          gradient  -p (x - (lse - H))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stepwell.packing import projection_torch

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
    order, starts = sort_tokens(rows, logits.shape[0])
    given = (logits, inverse_temperatures, order, starts, targets, with_entropies)
    logprobs, entropies = _TokenScores.apply(*given)  # type: ignore[no-untyped-call]
    return logprobs, entropies if with_entropies else None


def sort_tokens(rows: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """The tokens by their rows, and where each row's begin: row r has `order[starts[r] : starts[r + 1]]`."""
    order = rows.argsort(stable=True)
    return order, torch.searchsorted(rows[order], torch.arange(num_rows + 1, device=rows.device))


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        inverse_temperatures: Tensor,
        order: Tensor,
        starts: Tensor,
        targets: Tensor,
        with_entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        scale = inverse_temperatures.to(torch.promote_types(logits.dtype, torch.float32))
        log_sums, means = torch.empty_like(scale), torch.zeros_like(scale)
        logprobs = scale.new_empty(targets.shape)
        for part, ends in _split_chunks(logits, starts):
            numbers = (logprobs, log_sums[part], means[part])
            projection_torch.score_rows(
                logits[part], scale[part], ends, order, targets, *numbers, with_means=with_entropies
            )
        ctx.with_entropies = with_entropies
        ctx.save_for_backward(logits, scale, order, starts, targets, log_sums, means)
        return logprobs, log_sums - means

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, logprob_grads: Tensor, entropy_grads: Tensor) -> tuple[Tensor | None, ...]:
        logits, scale, order, starts, targets, log_sums, means = ctx.saved_tensors
        grads = torch.empty_like(logits)
        for part, ends in _split_chunks(logits, starts):
            numbers = (scale[part], ends, order, targets, log_sums[part], means[part], logprob_grads)
            pulls = entropy_grads[part] if ctx.with_entropies else None
            grads[part] = projection_torch.pull_rows(logits[part], *numbers, pulls)
        return grads, None, None, None, None, None


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


def _split_chunks(logits: Tensor, starts: Tensor) -> Iterator[tuple[slice, Tensor]]:
    size = CHUNK_BYTES.get(logits.device.type, CHUNK_BYTES["cpu"])
    rows = max(1, size // max(1, logits.shape[1] * 4))
    for start in range(0, logits.shape[0], rows):
        yield slice(start, start + rows), starts[start : start + rows + 1]
