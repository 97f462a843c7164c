"""Pieces of tree attention with CUDA's flash attention over segments of any length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST_LEVELS = 3
"""With more levels, one masked kernel is faster than many small ones."""


def supports(query: Tensor, value: Tensor, num_levels: int) -> bool:
    """Whether the kernel supports these tensors and the tree is flat enough to benefit."""
    is_half = query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
    size = query.shape[-1]
    return is_half and size == value.shape[-1] <= 256 and size % 8 == 0 and num_levels <= MOST_LEVELS


def attend_piece(
    query: Tensor, key: Tensor, value: Tensor, piece: Any, scaling: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs, log sums, and the random state for the backward pass (unused, since there is no dropout)."""
    output, log_sums, *state = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        piece.row_starts,
        piece.key_starts,
        max(piece.row_counts),
        max(piece.key_counts),
        0.0,
        piece.is_causal,
        False,
        scale=scaling,
    )
    return output, log_sums, state[:2]


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
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        outer,
        query,
        key,
        value,
        output,
        log_sums,
        piece.row_starts,
        piece.key_starts,
        max(piece.row_counts),
        max(piece.key_counts),
        0.0,
        piece.is_causal,
        *state,
        scale=scaling,
    )
    return grads
