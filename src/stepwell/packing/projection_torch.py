"""What `projection.py` reads from the logits of a chunk of rows, in plain torch.

The tokens of row r are `order[ends[r] : ends[r + 1]]`; `ends` has one element more than there are rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

Comparison = tuple[Tensor, Tensor, Tensor]
"""The reference's logits [R, V], the mean difference from them [R], and the gradient of the KL [R]."""
_LEAST = -1e30
"""Stands for a logit of -inf, whose weight is 0: 0 * -inf is no number, and a mask costs two more passes."""


def score_rows(
    logits: Tensor,
    scale: Tensor,
    ends: Tensor,
    order: Tensor,
    targets: Tensor,
    logprobs: Tensor,
    log_sums: Tensor,
    means: Tensor,
    *,
    with_means: bool,
) -> None:
    """Write the logprobs of the rows' tokens, their log sums and, if wanted, their mean logits."""
    scaled = logits.to(scale.dtype) * scale[:, None]
    log_sums.copy_(torch.logsumexp(scaled, 1))
    tokens, owners = _list_tokens(ends, order)
    logprobs[tokens] = scaled[owners, targets[tokens]] - log_sums[owners]
    if with_means:
        weights = (scaled - log_sums[:, None]).exp_()
        means.copy_(weights.mul_(scaled.clamp_(min=_LEAST)).sum(1))


def compare_rows(
    logits: Tensor, others: Tensor, scale: Tensor, log_sums: Tensor, gaps: Tensor, kls: Tensor
) -> None:
    """Write the mean difference of the rows' logits from those of the reference, and their KL to it."""
    ours, theirs = (side.to(scale.dtype) * scale[:, None] for side in (logits, others))
    other_sums = torch.logsumexp(theirs, 1)
    weights = (ours - log_sums[:, None]).exp_()
    gaps.copy_(torch.where(weights > 0, weights * (ours - theirs), 0).sum(1))
    kls.copy_(gaps + (other_sums - log_sums))


def pull_rows(
    logits: Tensor,
    scale: Tensor,
    ends: Tensor,
    order: Tensor,
    targets: Tensor,
    log_sums: Tensor,
    means: Tensor,
    logprob_grads: Tensor,
    entropy_grads: Tensor | None,
    comparison: Comparison | None = None,
) -> Tensor:
    """The gradient of the logits, in their dtype."""
    tokens, owners = _list_tokens(ends, order)
    pulls = logprob_grads[tokens].to(scale.dtype)
    pull = torch.zeros_like(log_sums).index_add_(0, owners, pulls)[:, None]
    scaled = logits.to(scale.dtype) * scale[:, None]
    weights = (scaled - log_sums[:, None]).exp_()
    if comparison is not None:
        others, gaps, kl_grads = comparison
        moved = scaled - others.to(scale.dtype) * scale[:, None] - gaps[:, None]
        pull = pull - torch.where(weights > 0, moved, 0).mul_(kl_grads[:, None])
    if entropy_grads is not None:
        centred = scaled.sub_(means[:, None]).clamp_(min=_LEAST)
        pull = centred.mul_(entropy_grads[:, None]).add_(pull)
    grads = weights.mul_(pull * -scale[:, None])
    grads.index_put_((owners, targets[tokens]), pulls * scale[owners], accumulate=True)
    return grads.to(logits.dtype)


def _list_tokens(ends: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of all rows, and the row of each."""
    tokens = order[int(ends[0]) : int(ends[-1])]
    rows = torch.arange(ends.shape[0] - 1, device=ends.device)
    return tokens, rows.repeat_interleave(ends.diff())
