"""Triton kernels for the parts of a decoder layer between its matrix products, forward and backward.

| here | does |
|---|---|
| `normalize_rows`, `scale_rows`, `pull_norm` | root-mean-square norm of rows, the same again, its gradients |
| `multiply_gate`, `pull_gate` | silu(gate) * up, and its gradients |
| `rotate_heads` | rotary positions of heads; its gradient is the same kernel run backwards |

In plain torch each of these is a handful of passes over device memory, with float32 copies kept for the
backward pass. Here each is one pass. Everything inside a kernel is float32. Sums over rows are taken in a
fixed order, so the same input gives the same bits. Import this module only where Triton is installed.
"""

# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096
_PROGRAMS = 264
"""Programs of the norm's backward pass, each with its own sum of weight gradients."""


def normalize_rows(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Norm of the rows of a contiguous [N, D], and the reciprocal root of each row's mean square."""
    count, width = x.shape
    out, scales = torch.empty_like(x), torch.empty(count, dtype=torch.float32, device=x.device)
    pad, rows = _choose_tile(width)
    _normalize_rows[(triton.cdiv(count, rows),)](
        x, weight, out, scales, count, eps, width, PAD=pad, ROWS=rows, num_warps=8
    )
    return out, scales


def scale_rows(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """The norm of the rows of x again, from the numbers that `normalize_rows` returned."""
    count, width = x.shape
    out = torch.empty_like(x)
    pad, rows = _choose_tile(width)
    _scale_rows[(triton.cdiv(count, rows),)](
        x, weight, out, scales, count, width, PAD=pad, ROWS=rows, num_warps=8
    )
    return out


def pull_norm(grads: Tensor, x: Tensor, weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight."""
    count, width = x.shape
    x_grads = torch.empty_like(x)
    pad, rows = _choose_tile(width)
    num_tiles = triton.cdiv(count, rows)
    programs = min(_PROGRAMS, num_tiles)
    sums = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    _pull_norm[(programs,)](
        grads, x, weight, scales, x_grads, sums, count, num_tiles, width, PAD=pad, ROWS=rows, num_warps=8
    )
    return x_grads, sums.sum(0).to(weight.dtype)


def _choose_tile(width: int) -> tuple[int, int]:
    """Padded width and rows of a tile."""
    pad = triton.next_power_of_2(width)
    return pad, max(1, _TILE // pad)


@triton.jit
def _normalize_rows(
    x_ptr, weight_ptr, out_ptr, scale_ptr, count, eps, width, PAD: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PAD)
    is_inside = (row < count)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    x = tl.load(x_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / width + eps)
    tl.store(scale_ptr + row, scale, mask=row < count)
    plain = (x * scale[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + at, (plain * weight[None, :]).to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def _scale_rows(x_ptr, weight_ptr, out_ptr, scale_ptr, count, width, PAD: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, PAD)
    is_inside = (row < count)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    x = tl.load(x_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + row, mask=row < count, other=0.0)
    plain = (x * scale[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + at, (plain * weight[None, :]).to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def _pull_norm(
    grad_ptr, x_ptr, weight_ptr, scale_ptr, x_grad_ptr, sum_ptr, count, num_tiles, width,
    PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, PAD)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros([PAD], dtype=tl.float32)
    for tile in range(program, num_tiles, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        is_inside = (row < count)[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        x = tl.load(x_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row, mask=row < count, other=0.0)
        plain = x * scale[:, None]
        total += tl.sum(grad * plain, 0)
        pull = grad * weight[None, :]
        mean = tl.sum(pull * plain, 1) / width
        x_grad = scale[:, None] * (pull - plain * mean[:, None])
        tl.store(x_grad_ptr + at, x_grad.to(x_grad_ptr.dtype.element_ty), mask=is_inside)
    tl.store(sum_ptr + program * width + column, total, mask=column < width)


def multiply_gate(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up of contiguous tensors."""
    out = torch.empty_like(gate)
    _multiply_gate[(triton.cdiv(gate.numel(), _TILE),)](gate, up, out, gate.numel(), BLOCK=_TILE, num_warps=8)
    return out


def pull_gate(grads: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of gate and up."""
    gate_grads, up_grads = torch.empty_like(gate), torch.empty_like(up)
    _pull_gate[(triton.cdiv(gate.numel(), _TILE),)](
        grads, gate, up, gate_grads, up_grads, gate.numel(), BLOCK=_TILE, num_warps=8
    )
    return gate_grads, up_grads


@triton.jit
def _multiply_gate(gate_ptr, up_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=at < count)


@triton.jit
def _pull_gate(grad_ptr, gate_ptr, up_ptr, gate_grad_ptr, up_grad_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(grad_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    gate_grad = grad * up * share * (1.0 + gate * (1.0 - share))
    tl.store(gate_grad_ptr + at, gate_grad.to(gate_grad_ptr.dtype.element_ty), mask=at < count)
    tl.store(up_grad_ptr + at, (grad * gate * share).to(up_grad_ptr.dtype.element_ty), mask=at < count)


def rotate_heads(x: Tensor, cos: Tensor, sin: Tensor, *, is_backward: bool = False) -> Tensor:
    """Rotate a contiguous [N, heads, D] by cos and sin [P, D]; token n has row n % P."""
    count, heads, width = x.shape
    out = torch.empty_like(x)
    half = width // 2
    _rotate_heads[(count,)](
        x, cos, sin, out, cos.shape[0], heads, half,
        IS_BACKWARD=is_backward, HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(half),
        num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_heads(
    x_ptr, cos_ptr, sin_ptr, out_ptr, period, heads, half,
    IS_BACKWARD: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, HEADS), tl.arange(0, HALF)
    is_column = column < half
    is_inside = (head < heads)[:, None] & is_column[None, :]
    first = token * heads * 2 * half + head[:, None] * 2 * half + column[None, :]
    low = tl.load(x_ptr + first, mask=is_inside, other=0.0).to(tl.float32)
    high = tl.load(x_ptr + first + half, mask=is_inside, other=0.0).to(tl.float32)
    angle = (token % period) * 2 * half + column
    cos_low = tl.load(cos_ptr + angle, mask=is_column, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(cos_ptr + angle + half, mask=is_column, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(sin_ptr + angle, mask=is_column, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(sin_ptr + angle + half, mask=is_column, other=0.0).to(tl.float32)[None, :]
    if IS_BACKWARD:
        new_low = low * cos_low + high * sin_high
        new_high = high * cos_high - low * sin_low
    else:
        new_low = low * cos_low - high * sin_low
        new_high = high * cos_high + low * sin_high
    tl.store(out_ptr + first, new_low.to(out_ptr.dtype.element_ty), mask=is_inside)
    tl.store(out_ptr + first + half, new_high.to(out_ptr.dtype.element_ty), mask=is_inside)
