"""What `projection.py` reads from the logits of a chunk of rows, one kernel per pass.

The counterpart of `projection_torch.py`. Forward, a program reads one row twice (its maximum, then its sums);
the second time it comes from the cache. Backward, a program turns a piece of a row in place into its
gradient. Sums are float32 in a fixed order, so the same input gives the same bits.
"""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

Comparison = tuple[Tensor, Tensor, Tensor]
"""The reference's logits [R, V], the mean difference from them [R], and the gradient of the KL [R]."""
_FORWARD_BLOCK = 4096
_BACKWARD_BLOCK = 2048


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
    rows, vocab = logits.shape
    block = min(_FORWARD_BLOCK, triton.next_power_of_2(vocab))
    _score_rows[(rows,)](
        logits, scale, ends, order, targets, logprobs, log_sums, means, vocab,
        WITH_MEANS=with_means, BLOCK=block, num_warps=8,
    )  # fmt: skip


def compare_rows(
    logits: Tensor, others: Tensor, scale: Tensor, log_sums: Tensor, gaps: Tensor, kls: Tensor
) -> None:
    """Write the mean difference of the rows' logits from those of the reference, and their KL to it."""
    rows, vocab = logits.shape
    block = min(_FORWARD_BLOCK, triton.next_power_of_2(vocab))
    _compare_rows[(rows,)](logits, others, scale, log_sums, gaps, kls, vocab, BLOCK=block, num_warps=8)


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
    """The gradient of the logits, in their place."""
    rows, vocab = logits.shape
    block = min(_BACKWARD_BLOCK, triton.next_power_of_2(vocab))
    pulls = logprob_grads if entropy_grads is None else entropy_grads.contiguous()
    others, gaps, kl_grads = comparison or (logits, log_sums, log_sums)
    _pull_rows[(rows, triton.cdiv(vocab, block))](
        logits, scale, ends, order, targets, log_sums, means, logprob_grads.contiguous(), pulls,
        others, gaps, kl_grads.contiguous(), vocab,
        WITH_ENTROPIES=entropy_grads is not None, WITH_REFERENCE=comparison is not None,
        BLOCK=block, num_warps=8,
    )  # fmt: skip
    return logits


@triton.jit
def _score_rows(
    logits_ptr, scale_ptr, ends_ptr, order_ptr, target_ptr, logprob_ptr, log_sum_ptr, mean_ptr, vocab,
    WITH_MEANS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * vocab
    scale = tl.load(scale_ptr + row)
    column = tl.arange(0, BLOCK)
    tops = tl.zeros([BLOCK], dtype=tl.float32) + float("-inf")
    for start in range(0, vocab, BLOCK):
        at = start + column
        x = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        tops = tl.maximum(tops, x)
    top = tl.max(tops, 0) * scale
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    weighted = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, vocab, BLOCK):
        at = start + column
        x = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * scale
        weight = tl.exp(x - top)
        sums += weight
        if WITH_MEANS:
            weighted += tl.where(weight > 0.0, weight * x, 0.0)
    total = tl.sum(sums, 0)
    log_sum = top + tl.log(total)
    tl.store(log_sum_ptr + row, log_sum)
    if WITH_MEANS:
        tl.store(mean_ptr + row, tl.sum(weighted, 0) / total)
    for place in range(tl.load(ends_ptr + row), tl.load(ends_ptr + row + 1)):
        token = tl.load(order_ptr + place)
        x = tl.load(logits + tl.load(target_ptr + token)).to(tl.float32) * scale
        tl.store(logprob_ptr + token, x - log_sum)


@triton.jit
def _compare_rows(logits_ptr, other_ptr, scale_ptr, log_sum_ptr, gap_ptr, kl_ptr, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * vocab
    others = other_ptr + row.to(tl.int64) * vocab
    scale = tl.load(scale_ptr + row)
    log_sum = tl.load(log_sum_ptr + row)
    column = tl.arange(0, BLOCK)
    tops = tl.zeros([BLOCK], dtype=tl.float32) + float("-inf")
    for start in range(0, vocab, BLOCK):
        at = start + column
        y = tl.load(others + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        tops = tl.maximum(tops, y)
    top = tl.max(tops, 0) * scale
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    weighted = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, vocab, BLOCK):
        at = start + column
        x = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * scale
        y = tl.load(others + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * scale
        sums += tl.exp(y - top)
        weight = tl.exp(x - log_sum)
        weighted += tl.where(weight > 0.0, weight * (x - y), 0.0)
    gap = tl.sum(weighted, 0)
    tl.store(gap_ptr + row, gap)
    tl.store(kl_ptr + row, gap + (top + tl.log(tl.sum(sums, 0)) - log_sum))


@triton.jit
def _pull_rows(
    logits_ptr, scale_ptr, ends_ptr, order_ptr, target_ptr, log_sum_ptr, mean_ptr, grad_ptr, entropy_ptr,
    other_ptr, gap_ptr, kl_ptr, vocab,
    WITH_ENTROPIES: tl.constexpr, WITH_REFERENCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * vocab
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    scale = tl.load(scale_ptr + row)
    x = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * scale
    weight = tl.exp(x - tl.load(log_sum_ptr + row))
    own = tl.zeros([BLOCK], dtype=tl.float32)
    pull = tl.zeros([BLOCK], dtype=tl.float32)
    for place in range(tl.load(ends_ptr + row), tl.load(ends_ptr + row + 1)):
        token = tl.load(order_ptr + place)
        grad = tl.load(grad_ptr + token)
        pull += grad
        own += tl.where(at == tl.load(target_ptr + token), grad, 0.0)
    if WITH_ENTROPIES:
        centred = tl.where(weight > 0.0, x - tl.load(mean_ptr + row), 0.0)
        pull += tl.load(entropy_ptr + row) * centred
    if WITH_REFERENCE:
        others = other_ptr + row.to(tl.int64) * vocab
        y = tl.load(others + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * scale
        pull -= tl.load(kl_ptr + row) * tl.where(weight > 0.0, x - y - tl.load(gap_ptr + row), 0.0)
    grads = scale * (own - weight * pull)
    tl.store(logits + at, grads.to(logits_ptr.dtype.element_ty), mask=at < vocab)
