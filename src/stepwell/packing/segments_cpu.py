"""Pieces of tree attention by the CPU's fused attention, one call per stretch of equal segments.

Few calls and few passes over small tensors: on a busy machine every one of them may wait
for a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import torch
from torch import Tensor


def supports(query: Tensor, value: Tensor, num_levels: int) -> bool:
    """Whether the kernel takes these tensors."""
    is_wide = query.dtype in (torch.float32, torch.float64)
    return query.device.type == "cpu" and is_wide and query.shape[-1] == value.shape[-1]


def attend(
    query: Tensor, key: Tensor, value: Tensor, piece: Any, scaling: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs and log sums; the kernel keeps no state."""
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    log_sums = query.new_empty(query.shape[1], query.shape[0])
    for rows, keys, count in _stretches(piece):
        sides = _split(query[rows], count), *(_split(side[keys], count, query) for side in (key, value))
        part, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *sides, 0.0, piece.is_causal, scale=scaling
        )
        _split(output[rows], count).copy_(part)
        log_sums[:, rows].view(query.shape[1], count, -1).copy_(sums.transpose(0, 1))
    return output, log_sums, []


def attend_backward(
    outer: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sums: Tensor,
    state: list[Tensor],
    piece: Any,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    grads = tuple(
        torch.empty_like(side, memory_format=torch.contiguous_format) for side in (query, key, value)
    )
    for rows, keys, count in _stretches(piece):
        sums = log_sums[:, rows].view(query.shape[1], count, -1).transpose(0, 1)
        parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _split(outer[rows], count),
            _split(query[rows], count),
            _split(key[keys], count, query),
            _split(value[keys], count, query),
            _split(output[rows], count),
            sums,
            0.0,
            piece.is_causal,
            scale=scaling,
        )
        for total, part, places in zip(grads, parts, (rows, keys, keys), strict=True):
            target = _split(total[places], count)
            if part.shape[1] != target.shape[1]:  # sum over the heads that share a key head
                part = part.reshape(count, target.shape[1], -1, *part.shape[2:]).sum(2)
            target.copy_(part)
    return grads[0], grads[1], grads[2]


def _stretches(piece: Any) -> Iterator[tuple[slice, slice, int]]:
    """Consecutive segments of equal size: their rows, their keys, and how many they are."""
    row, key = 0, 0
    for (row_count, key_count), same in groupby(zip(piece.row_counts, piece.key_counts, strict=True)):
        count = len(list(same))
        yield slice(row, row + count * row_count), slice(key, key + count * key_count), count
        row, key = row + count * row_count, key + count * key_count


def _split(side: Tensor, count: int, query: Tensor | None = None) -> Tensor:
    """[count * length, heads, D] to [count, heads, length, D]; keys repeated to as many heads as queries."""
    split = side.view(count, -1, *side.shape[1:]).transpose(1, 2)
    if query is None or query.shape[1] == side.shape[1]:
        return split
    return split.repeat_interleave(query.shape[1] // side.shape[1], 1)
