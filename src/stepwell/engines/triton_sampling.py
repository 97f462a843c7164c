"""A Triton kernel that draws tokens on CUDA: token and logprob from logits, as `sampling.choose_tokens` does.

One program per row passes over the vocabulary: maximum and normaliser, the threshold of top-p, then the token
at the drawn number. Import this module only where Triton is installed, as `triton_kernels.py`.
"""

# mypy: disable-error-code="import-not-found,import-untyped,no-untyped-def,untyped-decorator,no-any-return"

from __future__ import annotations

import torch
import triton
import triton.language as tl

NEGATIVE = tl.constexpr(float("-inf"))
ONE_AS_BITS = tl.constexpr(0x3F800000)  # 1.0 in float32


@triton.jit
def _load_scaled(logits, at, vocab, temperature):
    return tl.load(logits + at, mask=at < vocab, other=NEGATIVE).to(tl.float32) / temperature


@triton.jit
def _find_threshold(logits, cols, vocab, temperature, best, total, top_p, BLOCK: tl.constexpr):
    # Top-p: the highest threshold whose tokens still hold top_p of the mass, found by halving the range of
    # bit patterns, which order positive floats as their values do. Returned: its bits, and that mass.
    none = tl.program_id(0) * 0
    low = none
    mass = total
    high = none + ONE_AS_BITS + 1
    for _ in range(30):
        middle = (low + high) // 2
        limit = middle.to(tl.float32, bitcast=True)
        kept = none.to(tl.float32)
        for start in range(0, vocab, BLOCK):
            at = start + cols
            x = _load_scaled(logits, at, vocab, temperature)
            weight = tl.exp(x - best)
            kept += tl.sum(tl.where(weight >= limit, weight, 0.0), 0)
        enough = kept >= top_p * total
        mass = tl.where(enough, kept, mass)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low, mass


@triton.jit
def _sample_kernel(
    logits_ptr, temperature_ptr, top_p_ptr, uniform_ptr, token_ptr, logprob_ptr, vocab, stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    logits = logits_ptr + row.to(tl.int64) * stride
    asked = tl.load(temperature_ptr + row)
    temperature = tl.where(asked == 0.0, 1.0, asked)
    top_p = tl.load(top_p_ptr + row)
    cols = tl.arange(0, BLOCK)
    none = row * 0

    best = none.to(tl.float32) + NEGATIVE
    best_at = none
    total = none.to(tl.float32)
    for start in range(0, vocab, BLOCK):
        at = start + cols
        x = _load_scaled(logits, at, vocab, temperature)
        top = tl.max(x, 0)
        place = tl.argmax(x, 0)
        higher = tl.maximum(best, top)
        total = total * tl.exp(best - higher) + tl.sum(tl.exp(x - higher), 0)
        best_at = tl.where(top > best, start + place, best_at)
        best = higher

    token = best_at
    if asked != 0.0:
        low = none
        mass = total
        if top_p < 1.0:
            low, mass = _find_threshold(logits, cols, vocab, temperature, best, total, top_p, BLOCK)
        threshold = low.to(tl.float32, bitcast=True)
        target = tl.load(uniform_ptr + row) * mass
        before = none.to(tl.float32)
        found = none
        for start in range(0, vocab, BLOCK):
            at = start + cols
            x = _load_scaled(logits, at, vocab, temperature)
            weight = tl.exp(x - best)
            weight = tl.where(weight >= threshold, weight, 0.0)
            size = tl.sum(weight, 0)
            if (found == 0) & (before + size > target):
                inside = before + tl.cumsum(weight, 0)
                first = tl.min(tl.where((inside > target) & (weight > 0.0), cols, BLOCK), 0)
                last = tl.max(tl.where(weight > 0.0, cols, 0), 0)  # where rounding finds no first
                token = start + tl.minimum(first, last)
                found = none + 1
            before += size
    chosen = tl.load(logits + token).to(tl.float32) / temperature
    tl.store(token_ptr + row, token)
    tl.store(logprob_ptr + row, chosen - best - tl.log(total))


def sample_tokens(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    uniform: torch.Tensor,
    tokens: torch.Tensor,
    logprobs: torch.Tensor,
) -> None:
    """Fill tokens (int64) and logprobs (float32) [B] from logits [B, V]; temperature 0 is greedy."""
    vocab = logits.shape[1]
    block = min(4096, triton.next_power_of_2(vocab))
    _sample_kernel[(len(logits),)](
        logits, temperature, top_p, uniform, tokens, logprobs, vocab, logits.stride(0),
        BLOCK=block, num_warps=8,
    )  # fmt: skip
