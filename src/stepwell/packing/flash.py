"""Tree attention on CUDA by flash attention over segments, for trees of few levels.

The tree falls into dense pieces: every run against itself, causally, in one call for all
runs; then, level by level, everything below a branching run against that run. Both work on
the packed tensors as they are, since runs and subtrees are contiguous. Outputs are joined by
their log sums, and the backward pass of each piece is given the joined output and log sums.

A batch of dialogues with one prompt has one level, so two calls per layer do all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.packing.layout import Range, TreeLayout
from stepwell.packing.scoring import Scoring

MOST_LEVELS = 3
"""Past this many levels one masked kernel beats so many small ones."""

_forward = torch.ops.aten._flash_attention_forward
_backward = torch.ops.aten._flash_attention_backward


def can_use_flash(query: Tensor, value: Tensor, layout: TreeLayout, how: Scoring) -> bool:
    """Whether the kernel supports these tensors, and the tree is flat enough to gain by it."""
    has_support = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    has_support &= query.shape[-1] == value.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    is_plain = how.softcap is None and (how.window is None or int(layout.depths.max()) < how.window)
    return has_support and is_plain and len(layout.levels) <= MOST_LEVELS


def flash_tree_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: Scoring
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out."""
    if "flash" not in layout.cache:
        layout.cache["flash"] = _pieces(layout)
    sides = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    output: Tensor = _FlashTreeAttention.apply(*sides, layout.cache["flash"], how.scaling)  # type: ignore[no-untyped-call]
    return output[None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """One call: which rows attend to which keys, by segments. A selection is a slice if it can be."""

    rows: slice | Tensor
    keys: slice | Tensor
    row_starts: Tensor
    key_starts: Tensor
    most_rows: int
    most_keys: int
    is_causal: bool


def _pieces(layout: TreeLayout) -> list[_Piece]:
    runs = [(start, stop) for start, stop, _ in layout.runs]
    if layout.num_tokens > runs[-1][1]:
        runs.append((runs[-1][1], layout.num_tokens))  # padding, by itself
    device = layout.device
    levels = [_piece(level.rows, level.keys, device, is_causal=False) for level in layout.levels]
    return [_piece(runs, runs, device, is_causal=True), *levels]


def _piece(rows: Sequence[Range], keys: Sequence[Range], device: torch.device, *, is_causal: bool) -> _Piece:
    row_counts, key_counts = ([stop - start for start, stop in ranges] for ranges in (rows, keys))
    return _Piece(
        _selection(rows, device),
        _selection(keys, device),
        _starts(row_counts, device),
        _starts(key_counts, device),
        max(row_counts),
        max(key_counts),
        is_causal,
    )


def _selection(ranges: Sequence[Range], device: torch.device) -> slice | Tensor:
    if all(a[1] == b[0] for a, b in pairwise(ranges)):
        return slice(ranges[0][0], ranges[-1][1])
    return torch.from_numpy(np.concatenate([np.arange(*r) for r in ranges])).to(device)


def _starts(counts: Sequence[int], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)).to(device)


class _FlashTreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, pieces: list[_Piece], scaling: float
    ) -> Tensor:
        own, *levels = pieces
        output, log_sums, *random = _attend(query, key, value, own, scaling)
        for piece in levels:
            part, part_sums, *_ = _attend(query, key, value, piece, scaling)
            own_sums = log_sums[:, piece.rows]
            joined = torch.logaddexp(own_sums, part_sums)
            weights = torch.stack([own_sums - joined, part_sums - joined]).exp_().mT[..., None]
            output[piece.rows] = output[piece.rows] * weights[0] + part * weights[1]
            log_sums[:, piece.rows] = joined
        ctx.save_for_backward(query, key, value, output, log_sums, *random[:2])
        ctx.pieces, ctx.scaling = pieces, scaling
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sums, *random = ctx.saved_tensors
        own, *levels = ctx.pieces
        saved = (grad_output.contiguous(), query, key, value, output, log_sums)
        grads = _attend_backward(*saved, own, random, ctx.scaling)
        for piece in levels:
            part = _attend_backward(*saved, piece, random, ctx.scaling)
            for total, grad, place in zip(grads, part, (piece.rows, piece.keys, piece.keys), strict=True):
                total[place] += grad  # places are distinct, so adding by index is adding
        return *grads, None, None


def _attend(query: Tensor, key: Tensor, value: Tensor, piece: _Piece, scaling: float) -> tuple[Tensor, ...]:
    """Output [rows, heads, D], log sums [heads, rows], and the kernel's random state."""
    result: tuple[Tensor, ...] = _forward(
        query[piece.rows],
        key[piece.keys],
        value[piece.keys],
        piece.row_starts,
        piece.key_starts,
        piece.most_rows,
        piece.most_keys,
        0.0,
        piece.is_causal,
        False,
        scale=scaling,
    )
    return result


def _attend_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sums: Tensor,
    piece: _Piece,
    random: list[Tensor],
    scaling: float,
) -> tuple[Tensor, ...]:
    result: tuple[Tensor, ...] = _backward(
        grad_output[piece.rows],
        query[piece.rows],
        key[piece.keys],
        value[piece.keys],
        output[piece.rows],
        log_sums[:, piece.rows].contiguous(),
        piece.row_starts,
        piece.key_starts,
        piece.most_rows,
        piece.most_keys,
        0.0,
        piece.is_causal,
        *random,
        scale=scaling,
    )
    return result
