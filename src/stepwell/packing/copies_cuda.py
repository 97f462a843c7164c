"""Sums the copies of each token in one kernel launch.

Inputs and outputs are in half precision, sums in float32. Every token adds its copies in the order they are
listed, so the same input gives the same bits.
"""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def sum_copies(keys: Tensor, values: Tensor, copies: Tensor, copy_starts: Tensor) -> tuple[Tensor, Tensor]:
    """Sum copies [copies, heads, D] of keys and values to [tokens, heads, D]; see `paths.Paths`."""
    num_tokens = copy_starts.shape[0] - 1
    sums = [side.new_empty(num_tokens, *side.shape[1:]) for side in (keys, values)]
    width = keys.shape[1] * keys.shape[2]
    _sum_copies[(num_tokens,)](
        keys.contiguous(),
        values.contiguous(),
        *sums,
        copies,
        copy_starts,
        width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4 if width <= 1024 else 8,
    )
    return sums[0], sums[1]


@triton.jit
def _sum_copies(keys, values, key_sums, value_sums, copies, copy_starts, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    is_inside = column < width
    key_sum = tl.zeros([BLOCK], dtype=tl.float32)
    value_sum = tl.zeros([BLOCK], dtype=tl.float32)
    for place in range(tl.load(copy_starts + token), tl.load(copy_starts + token + 1)):
        at = tl.load(copies + place).to(tl.int64) * width + column
        key_sum += tl.load(keys + at, mask=is_inside, other=0.0).to(tl.float32)
        value_sum += tl.load(values + at, mask=is_inside, other=0.0).to(tl.float32)
    to = token.to(tl.int64) * width + column
    tl.store(key_sums + to, key_sum.to(key_sums.dtype.element_ty), mask=is_inside)
    tl.store(value_sums + to, value_sum.to(value_sums.dtype.element_ty), mask=is_inside)
