"""Triton kernels for the parts of a decoder layer between its matrix products, forward and backward.

| here | does |
|---|---|
| `normalize_rows`, `scale_rows`, `pull_norm` | root-mean-square norm of rows, the same again, its gradients |
| `multiply_gate`, `pull_gate` | silu(gate) * up, and its gradients |
| `multiply_halves`, `pull_halves` | the same where gate and up are the halves of each row |
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
_PIECE = 1024
_PULL = (2112, 2048, 2)
"""The norm's backward pass: programs, each with its own sum of weight gradients; numbers per tile; warps."""


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


def pull_norm(
    grads: Tensor, x: Tensor, weight: Tensor, scales: Tensor, added: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the weight; `added` is a gradient of x from elsewhere, added in the same pass."""
    count, width = x.shape
    x_grads = torch.empty_like(x)
    most, tile, warps = _PULL
    pad, rows = _choose_tile(width, tile)
    num_tiles = triton.cdiv(count, rows)
    programs = min(most, num_tiles)
    sums = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    _pull_norm[(programs,)](
        grads, x, weight, scales, grads if added is None else added, x_grads, sums, count, num_tiles, width,
        HAS_ADDED=added is not None, PAD=pad, ROWS=rows, num_warps=warps,
    )  # fmt: skip
    return x_grads, sums.sum(0).to(weight.dtype)


def _choose_tile(width: int, size: int = _TILE) -> tuple[int, int]:
    """Padded width and rows of a tile."""
    pad = triton.next_power_of_2(width)
    return pad, max(1, size // pad)


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
    grad_ptr, x_ptr, weight_ptr, scale_ptr, added_ptr, x_grad_ptr, sum_ptr, count, num_tiles, width,
    HAS_ADDED: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, PAD)
    weight = tl.load(weight_ptr + column, mask=column < width, other=0.0).to(tl.float32)
    total = tl.zeros([ROWS, PAD], dtype=tl.float32)
    for tile in range(program, num_tiles, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        is_inside = (row < count)[:, None] & (column < width)[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        x = tl.load(x_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row, mask=row < count, other=0.0)
        plain = x * scale[:, None]
        total += grad * plain
        pull = grad * weight[None, :]
        mean = tl.sum(pull * plain, 1) / width
        x_grad = scale[:, None] * (pull - plain * mean[:, None])
        if HAS_ADDED:
            x_grad += tl.load(added_ptr + at, mask=is_inside, other=0.0).to(tl.float32)
        tl.store(x_grad_ptr + at, x_grad.to(x_grad_ptr.dtype.element_ty), mask=is_inside)
    tl.store(sum_ptr + program * width + column, tl.sum(total, 0), mask=column < width)


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


def multiply_halves(rows: Tensor) -> Tensor:
    """silu(left) * right of a contiguous [N, 2 * D]."""
    count, width = rows.shape[0], rows.shape[1] // 2
    out = rows.new_empty(count, width)
    _multiply_halves[(count, triton.cdiv(width, _PIECE))](rows, out, width, BLOCK=_PIECE, num_warps=4)
    return out


def pull_halves(grads: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """Gradients of the rows, into `out` (may be `rows`). Turns `grads`, in its place, into the product."""
    count, width = grads.shape
    _pull_halves[(count, triton.cdiv(width, _PIECE))](grads, rows, out, width, BLOCK=_PIECE, num_warps=4)
    return out


@triton.jit
def _multiply_halves(row_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < width
    gate = tl.load(row_ptr + row * 2 * width + column, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(row_ptr + row * 2 * width + width + column, mask=is_inside, other=0.0).to(tl.float32)
    # rounded where the plain layer rounds: after the gate, and after the product
    opened = (gate / (1.0 + tl.exp(-gate))).to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * width + column, (opened * up).to(out_ptr.dtype.element_ty), mask=is_inside)


@triton.jit
def _pull_halves(grad_ptr, row_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_inside = column < width
    left = row * 2 * width + column
    gate = tl.load(row_ptr + left, mask=is_inside, other=0.0).to(tl.float32)
    up = tl.load(row_ptr + left + width, mask=is_inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + row * width + column, mask=is_inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    gate_grad = grad * up * share * (1.0 + gate * (1.0 - share))
    tl.store(out_ptr + left, gate_grad.to(out_ptr.dtype.element_ty), mask=is_inside)
    tl.store(out_ptr + left + width, (grad * gate * share).to(out_ptr.dtype.element_ty), mask=is_inside)
    opened = (gate * share).to(grad_ptr.dtype.element_ty).to(tl.float32)
    tl.store(grad_ptr + row * width + column, (opened * up).to(grad_ptr.dtype.element_ty), mask=is_inside)


def rotate_heads(
    x: Tensor, cos: Tensor, sin: Tensor, *, is_backward: bool = False, out: Tensor | None = None
) -> Tensor:
    """Rotate [N, heads, D] by cos and sin [P, D]; token n has row n % P. `out` may be x.

    The heads of a token are contiguous; tokens may be further apart.
    """
    count, heads, width = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    assert x.stride()[1:] == out.stride()[1:] == (width, 1), "the heads of a token must be contiguous"
    half = width // 2
    _rotate_heads[(count,)](
        x, cos, sin, out, x.stride(0), out.stride(0), cos.shape[0], heads, half,
        IS_BACKWARD=is_backward, HEADS=triton.next_power_of_2(heads), HALF=triton.next_power_of_2(half),
        num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_heads(
    x_ptr, cos_ptr, sin_ptr, out_ptr, x_step, out_step, period, heads, half,
    IS_BACKWARD: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, HEADS), tl.arange(0, HALF)
    is_column = column < half
    is_inside = (head < heads)[:, None] & is_column[None, :]
    inside = head[:, None] * 2 * half + column[None, :]
    first = token * x_step + inside
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
    to = token * out_step + inside
    tl.store(out_ptr + to, new_low.to(out_ptr.dtype.element_ty), mask=is_inside)
    tl.store(out_ptr + to + half, new_high.to(out_ptr.dtype.element_ty), mask=is_inside)
