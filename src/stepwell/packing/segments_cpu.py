"""Pieces of tree attention with the CPU's fused attention, one call per block of similar segments.

The number of calls and of passes over small tensors is kept low, because on a busy machine each one may wait
for a thread.

The kernel processes 512 keys at a time and does not skip masked ones, so its causal mode computes almost the
whole square of a segment. Long segments are therefore cut into blocks of rows. Each block gets only the keys
up to its own end, and a mask for the corner, so only that corner is wasted.

Short causal segments of many lengths (the turns of many small episodes) are padded to a few common lengths
and computed together. Padding comes after a segment's tokens, so none of them attends to it. The rows of
padding are dropped and have no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK_ROWS = 192
"""Rows of a causal block. From this many rows on, the kernel uses taller tiles."""

FILL_TO = 16
"""Short segments are padded to a multiple of this."""


@dataclass(frozen=True, slots=True)
class _PaddedSegments:
    """Segments of similar length. `index` [count, length] is the source token of each place.

    `places` are the flat indices of places that hold a real token, `tokens` those tokens.
    """

    index: Tensor
    places: Tensor
    tokens: Tensor

    def gather(self, side: Tensor) -> Tensor:
        """Gather [tokens, heads, D] to [count, heads, length, D]."""
        return side[self.index].transpose(1, 2)

    def scatter(self, part: Tensor, side: Tensor) -> None:
        """Scatter [count, heads, length, D] back to its tokens of [tokens, heads, D]."""
        rows = part.transpose(1, 2).reshape(-1, *side.shape[1:])
        side.index_copy_(0, self.tokens, rows.index_select(0, self.places))

    def zero_padding(self, part: Tensor) -> Tensor:
        """Set the padding of [count, heads, length, D] to zero."""
        keep = torch.zeros(self.index.numel(), 1, 1, dtype=part.dtype)
        keep[self.places] = 1.0
        return part * keep.view(self.index.shape[0], 1, self.index.shape[1], 1)


@lru_cache(maxsize=8)
def _pad_segments(counts: tuple[int, ...]) -> list[_PaddedSegments] | None:
    """Plan how to compute these causal segments together; None if they are few, long or equal."""
    stretches = sum(1 for _ in groupby(counts))
    lengths = sorted({-(-count // FILL_TO) * FILL_TO for count in counts})
    if stretches < 4 * len(lengths) or max(counts) > 2 * BLOCK_ROWS:
        return None
    sizes = np.array(counts)
    starts = np.cumsum(sizes) - sizes
    groups = []
    for length in lengths:
        chosen = np.flatnonzero((sizes <= length) & (sizes > length - FILL_TO))
        steps = np.minimum(np.arange(length)[None, :], sizes[chosen, None] - 1)
        index = starts[chosen, None] + steps
        own = np.arange(length)[None, :] < sizes[chosen, None]
        places = np.flatnonzero(own)
        groups.append(_PaddedSegments(*(torch.from_numpy(x) for x in (index, places, index.ravel()[places]))))
    return groups


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows `first .. last` of `count` equal segments, against the first `num_keys` keys of each.

    `rows` and `keys` select the whole segments.
    """

    rows: slice
    keys: slice
    count: int
    first: int
    last: int
    num_keys: int
    is_causal: bool

    @property
    def is_last(self) -> bool:
        """Whether the block sees all keys of its segments."""
        return bool(self.num_keys * self.count == self.keys.stop - self.keys.start)

    def of_rows(self, side: Tensor) -> Tensor:
        """The block's part of [tokens, heads, D], as a view [count, heads, rows, D]."""
        split = side[self.rows].view(self.count, -1, *side.shape[1:])
        return split[:, self.first : self.last].transpose(1, 2)

    def of_keys(self, side: Tensor) -> Tensor:
        """The keys that the block sees of [tokens, heads, D], as a view [count, heads, keys, D]."""
        split = side[self.keys].view(self.count, -1, *side.shape[1:])
        return split[:, : self.num_keys].transpose(1, 2)

    def of_sums(self, log_sums: Tensor) -> Tensor:
        """The block's part of [heads, tokens], as a view [count, heads, rows]."""
        split = log_sums[:, self.rows].view(log_sums.shape[0], self.count, -1)
        return split[:, :, self.first : self.last].transpose(0, 1)

    def make_kernel_mask(self, dtype: torch.dtype) -> dict[str, Any]:
        """The kernel's mask arguments. Its own causal mode works only for a square."""
        rows = self.last - self.first
        if not self.is_causal or rows == self.num_keys:
            return {"dropout_p": 0.0, "is_causal": self.is_causal}
        return {
            "dropout_p": 0.0,
            "is_causal": False,
            "attn_mask": _build_corner_mask(rows, self.num_keys, dtype),
        }


def supports(query: Tensor, value: Tensor, num_levels: int) -> bool:
    """Whether the kernel supports these tensors."""
    is_wide = query.dtype in (torch.float32, torch.float64)
    return query.device.type == "cpu" and is_wide and query.shape[-1] == value.shape[-1]


def attend_piece(
    query: Tensor, key: Tensor, value: Tensor, piece: Any, scaling: float
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Outputs and log sums; the kernel keeps no state."""
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    log_sums = query.new_empty(query.shape[1], query.shape[0])
    groups = _pad_segments(piece.row_counts) if piece.is_causal else None
    for group in groups or ():
        part, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            group.gather(query), group.gather(key), group.gather(value), 0.0, True, scale=scaling
        )
        group.scatter(part, output)
        group.scatter(sums[..., None], log_sums.mT[..., None])
    if groups:
        return output, log_sums, []
    for block in _iterate_blocks(piece):
        part, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            block.of_rows(query),
            block.of_keys(key),
            block.of_keys(value),
            **block.make_kernel_mask(query.dtype),
            scale=scaling,
        )
        block.of_rows(output).copy_(part)
        block.of_sums(log_sums).copy_(sums)
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
    query_grad, key_grad, value_grad = (
        torch.empty_like(side, memory_format=torch.contiguous_format) for side in (query, key, value)
    )
    groups = _pad_segments(piece.row_counts) if piece.is_causal else None
    for group in groups or ():
        parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            group.zero_padding(group.gather(outer)),
            *(group.gather(side) for side in (query, key, value, output)),
            group.gather(log_sums.mT[..., None])[..., 0],
            0.0,
            True,
            scale=scaling,
        )
        for part, total in zip(parts, (query_grad, key_grad, value_grad), strict=True):
            group.scatter(part, total)
    if groups:
        return query_grad, key_grad, value_grad
    for block in _iterate_blocks(piece):
        row_part, *key_parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            block.of_rows(outer),
            block.of_rows(query),
            block.of_keys(key),
            block.of_keys(value),
            block.of_rows(output),
            block.of_sums(log_sums),
            **block.make_kernel_mask(query.dtype),
            scale=scaling,
        )
        block.of_rows(query_grad).copy_(row_part)
        for total, part in zip((key_grad, value_grad), key_parts, strict=True):
            if block.is_last:
                block.of_keys(total).copy_(part)
            else:
                block.of_keys(total).add_(part)
    return query_grad, key_grad, value_grad


def _iterate_blocks(piece: Any) -> Iterator[_Block]:
    """Iterate over the piece's blocks, by groups of equal adjacent segments, last rows first."""
    row, key = 0, 0
    for (row_count, key_count), same in groupby(zip(piece.row_counts, piece.key_counts, strict=True)):
        count = len(list(same))
        rows, keys = slice(row, row + count * row_count), slice(key, key + count * key_count)
        row, key = rows.stop, keys.stop
        firsts = range(0, max(row_count - BLOCK_ROWS // 2, 1), BLOCK_ROWS) if piece.is_causal else (0,)
        last = row_count
        for first in reversed(firsts):
            num_keys = last if piece.is_causal else key_count
            yield _Block(rows, keys, count, first, last, num_keys, piece.is_causal)
            last = first


@lru_cache(maxsize=64)
def _build_corner_mask(rows: int, num_keys: int, dtype: torch.dtype) -> Tensor:
    """Build a mask for rows that end where the keys end: -inf after each row's own place."""
    return torch.full((rows, num_keys), float("-inf"), dtype=dtype).triu_(num_keys - rows + 1)
