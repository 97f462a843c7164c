"""Tree attention as dense pieces over contiguous segments, which are then joined.

The tree splits into rectangles that need no mask except the causal one: every run attends to itself,
causally; then, level by level, everything below a branching run attends to that run. Runs and subtrees are
contiguous, so fused attention kernels work directly on the packed tensors. The outputs of the pieces are
joined by their *log sums* (per query and head, the logarithm of the softmax's denominator). Given the joined
output and log sums, the backward pass of each piece yields exactly its share of the gradients. Nothing of
size T x T is allocated.

A batch of dialogues with one prompt has one level, so two pieces are enough.

Two backends call fused kernels piece by piece: `segments_cpu` and `segments_cuda`. Tensors here are [tokens,
heads, D]; log sums are [heads, tokens].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.packing import segments_cpu, segments_cuda
from stepwell.packing.device_copies import copy_to_device
from stepwell.packing.kernel_inputs import ScoreOptions
from stepwell.packing.layout import Range, TreeLayout


@dataclass(frozen=True, slots=True)
class AttentionPiece:
    """Rows that attend to keys, segment by segment: the i-th segment of rows to the i-th of keys.

    `rows` and `keys` select the tokens (a slice if they are contiguous); `row_counts` and `key_counts` are
    the lengths of the segments.
    """

    rows: slice | Tensor
    keys: slice | Tensor
    row_counts: tuple[int, ...]
    key_counts: tuple[int, ...]
    row_starts: Tensor
    key_starts: Tensor
    is_causal: bool


def find_backend(query: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions) -> ModuleType | None:
    """The backend for these inputs, or None: other kernels handle soft caps and windows that cut."""
    if how.softcap is not None or (how.window is not None and layout.max_depth >= how.window):
        return None
    for backend in (segments_cpu, segments_cuda):
        if backend.supports(query, value, len(layout.levels)):
            return backend
    return None


def segment_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions, backend: ModuleType
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out."""
    if "pieces" not in layout.cache:
        layout.cache["pieces"] = _build_pieces(layout)
    sides = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    output: Tensor = _SegmentAttention.apply(*sides, layout.cache["pieces"], how.scaling, backend)  # type: ignore[no-untyped-call]
    return output[None]


class _SegmentAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pieces: list[AttentionPiece],
        scaling: float,
        backend: ModuleType,
    ) -> Tensor:
        own, *levels = pieces
        output, log_sums, state = backend.attend_piece(query, key, value, own, scaling)
        for piece in levels:
            rows = piece.rows
            part, part_sums, _ = backend.attend_piece(
                query[rows], key[piece.keys], value[piece.keys], piece, scaling
            )
            share = torch.sigmoid(part_sums - log_sums[:, rows]).mT[..., None].to(output.dtype)
            if isinstance(rows, slice):  # views are joined in place
                output[rows].lerp_(part, share)
                torch.logaddexp(log_sums[:, rows], part_sums, out=log_sums[:, rows])
            else:
                output[rows] = output[rows].lerp_(part, share)
                log_sums[:, rows] = torch.logaddexp(log_sums[:, rows], part_sums)
        ctx.save_for_backward(query, key, value, output, log_sums, *state)
        ctx.pieces, ctx.scaling, ctx.backend = pieces, scaling, backend
        return output  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sums, *state = ctx.saved_tensors
        own, *levels = ctx.pieces
        backward = ctx.backend.attend_backward
        outer = grad_output.contiguous()
        grads = backward(outer, query, key, value, output, log_sums, state, own, ctx.scaling)
        for piece in levels:
            rows, keys = piece.rows, piece.keys
            sums = log_sums[:, rows].contiguous()
            part = backward(
                outer[rows],
                query[rows],
                key[keys],
                value[keys],
                output[rows],
                sums,
                state,
                piece,
                ctx.scaling,
            )
            for total, grad, place in zip(grads, part, (rows, keys, keys), strict=True):
                total[place] += grad  # no token is selected twice, so each is added once
        return *grads, None, None, None


def _build_pieces(layout: TreeLayout) -> list[AttentionPiece]:
    runs = [(start, stop) for start, stop, _ in layout.runs]
    if layout.num_tokens > runs[-1][1]:
        runs.append((runs[-1][1], layout.num_tokens))  # padding is its own run
    levels = [_build_piece(level.rows, level.keys, layout.device, is_causal=False) for level in layout.levels]
    return [_build_piece(runs, runs, layout.device, is_causal=True), *levels]


def _build_piece(
    rows: Sequence[Range], keys: Sequence[Range], device: torch.device, *, is_causal: bool
) -> AttentionPiece:
    row_counts, key_counts = (tuple(stop - start for start, stop in ranges) for ranges in (rows, keys))
    return AttentionPiece(
        _select_tokens(rows, device),
        _select_tokens(keys, device),
        row_counts,
        key_counts,
        _count_starts(row_counts, device),
        _count_starts(key_counts, device),
        is_causal,
    )


def _select_tokens(ranges: Sequence[Range], device: torch.device) -> slice | Tensor:
    if all(a[1] == b[0] for a, b in pairwise(ranges)):
        return slice(ranges[0][0], ranges[-1][1])
    return copy_to_device(np.concatenate([np.arange(*r) for r in ranges]), device)


def _count_starts(counts: Sequence[int], device: torch.device) -> Tensor:
    return copy_to_device(np.concatenate([[0], np.cumsum(counts)]), device, np.int32)
