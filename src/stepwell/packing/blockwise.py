"""Tree attention run by run: exact, for every device and dtype, without a mask of T x T.

Each run of the tree attends to its path (ancestors, then itself) in blocks of queries.
Scores are plain matrix products; only the square where a block meets itself is masked.
Grouped heads share their keys by folding the group into the query rows. The backward
pass computes the scores again instead of keeping them, and adds into the gradients of
the ancestors in place.

A window of w lets a token see the w nearest tokens of its path, itself included; keys
wholly outside are not touched. `softcap` c turns a score s into c * tanh(s / c).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.packing.layout import RunGroup, TreeLayout

QUERY_BLOCK = 64
"""Queries per block. Smaller wastes less on the masked half of the diagonal square."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are made from queries and keys."""

    scaling: float
    window: int | None
    softcap: float | None


def blockwise_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: Scoring
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out."""
    output: Tensor = _BlockwiseAttention.apply(query, key, value, layout, how)  # type: ignore[no-untyped-call]
    return output


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: Scoring
    ) -> Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.layout, ctx.how = layout, how
        heads, num_tokens = query.shape[1:3]
        output = query.new_zeros(1, num_tokens, heads, value.shape[-1])
        for group in layout.run_groups:
            keys, values = _path(key[0], group), _path(value[0], group)
            queries = _queries(query[0], key.shape[1], group)
            for block in _blocks(group, how.window):
                probabilities, _ = _probabilities(queries, keys, block, how)
                mixed = torch.bmm(probabilities, values[:, block.low : block.high])
                _put(output[0], mixed, group, block)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        layout, how = ctx.layout, ctx.how
        grads = [tensor.new_zeros(tensor.shape[2], *tensor.shape[1::2]) for tensor in (query, key, value)]
        for group in layout.run_groups:
            keys, values = _path(key[0], group), _path(value[0], group)
            queries = _queries(query[0], key.shape[1], group)
            outer = _queries(grad_output[0].transpose(0, 1), key.shape[1], group)
            key_grad, value_grad = torch.zeros_like(keys), torch.zeros_like(values)
            for block in _blocks(group, how.window):
                grad = _block_backward(queries, outer, keys, values, key_grad, value_grad, block, how)
                _put(grads[0], grad, group, block)
            _add_path(grads[1], key_grad, group)
            _add_path(grads[2], value_grad, group)
        query_grad, key_total, value_total = (grad.unsqueeze(0).transpose(1, 2) for grad in grads)
        return query_grad, key_total, value_total, None, None


def _block_backward(
    queries: Tensor,
    outer: Tensor,
    keys: Tensor,
    values: Tensor,
    key_grad: Tensor,
    value_grad: Tensor,
    block: _Block,
    how: Scoring,
) -> Tensor:
    """Gradient of one block's queries; those of its keys and values are added to their buffers."""
    seen = slice(block.low, block.high)
    probabilities, slope = _probabilities(queries, keys, block, how)
    grad = block.rows(outer)
    value_grad[:, seen].baddbmm_(probabilities.transpose(1, 2), grad)
    grad = torch.bmm(grad, values[:, seen].transpose(1, 2))
    grad = torch._softmax_backward_data(grad, probabilities, -1, probabilities.dtype)
    if slope is not None:
        grad = grad * slope
    key_grad[:, seen].baddbmm_(grad.transpose(1, 2), block.rows(queries), alpha=how.scaling)
    return torch.bmm(grad, keys[:, seen]).mul_(how.scaling)


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries first .. last of a run, which see keys low .. high of its path."""

    first: int
    last: int
    low: int
    high: int
    window_offset: int | None

    def rows(self, queries: Tensor) -> Tensor:
        """The block's rows of [batch, group, length, D], as [batch, group * rows, D]."""
        return queries[:, :, self.first : self.last].flatten(1, 2)


def _blocks(group: RunGroup, window: int | None) -> Iterator[_Block]:
    for first in range(0, group.length, QUERY_BLOCK):
        last = min(first + QUERY_BLOCK, group.length)
        depth, high = group.depth + first, group.depth + last
        if window is None or high <= window:
            yield _Block(first, last, 0, high, None)
        else:
            low = max(0, depth - window + 1)
            yield _Block(first, last, low, high, window - (depth - low))


def _probabilities(
    queries: Tensor, keys: Tensor, block: _Block, how: Scoring
) -> tuple[Tensor, Tensor | None]:
    """Attention weights [batch, group * rows, keys], and the slope of the soft cap if there is one."""
    rows, count = block.last - block.first, block.high - block.low
    shape = (keys.shape[0], queries.shape[1] * rows, count)
    scores = torch.baddbmm(
        queries.new_empty(1, 1, 1).expand(shape),
        block.rows(queries),
        keys[:, block.low : block.high].transpose(1, 2),
        beta=0,
        alpha=how.scaling,
    )
    slope = None
    if how.softcap is not None:
        tanh = scores.div_(how.softcap).tanh_()
        slope = 1 - tanh.square()
        scores = tanh.mul(how.softcap)
    view = scores.view(shape[0], queries.shape[1], rows, count)
    above = torch.full((rows, rows), float("-inf"), dtype=scores.dtype, device=scores.device).triu_(1)
    view[..., count - rows :] += above
    if block.window_offset is not None:
        below = torch.ones(rows, min(rows, count), dtype=torch.bool, device=scores.device)
        view[..., : below.shape[1]].masked_fill_(below.tril_(-block.window_offset), float("-inf"))
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(scores.dtype), slope


def _queries(query: Tensor, num_key_heads: int, group: RunGroup) -> Tensor:
    """[heads, T, D] to [key heads * runs, heads per key head, length, D] of one group."""
    parts = [query[:, start : start + group.length] for start in group.starts]
    stacked = torch.stack(parts, 1)
    split = stacked.view(num_key_heads, -1, *stacked.shape[1:])
    return split.transpose(1, 2).flatten(0, 1)


def _path(tensor: Tensor, group: RunGroup) -> Tensor:
    """[key heads, T, D] to [key heads * runs, path length, D] of one group; a view if it can be."""
    if group.path_view is not None:
        return tensor[:, slice(*group.path_view)]
    above = [tensor[:, start:stop] for start, stop in group.ancestors]
    paths = [torch.cat([*above, tensor[:, start : start + group.length]], 1) for start in group.starts]
    return torch.stack(paths, 1).flatten(0, 1)


def _put(target: Tensor, block_rows: Tensor, group: RunGroup, block: _Block) -> None:
    """Write [batch, group * rows, D] to the block's places in [T, heads, D]."""
    runs, rows = len(group.starts), block.last - block.first
    split = block_rows.view(-1, runs, block_rows.shape[1] // rows, rows, block_rows.shape[-1])
    for index, start in enumerate(group.starts):
        place = target[start + block.first : start + block.last]
        place.view(rows, split.shape[0], split.shape[2], -1).copy_(split[:, index].permute(2, 0, 1, 3))


def _add_path(target: Tensor, path_grad: Tensor, group: RunGroup) -> None:
    """Add [key heads * runs, path length, D] to the path's places in [T, key heads, D]."""
    if group.path_view is not None:
        target[slice(*group.path_view)] += path_grad.transpose(0, 1)
        return
    split = path_grad.view(-1, len(group.starts), *path_grad.shape[1:])
    above = split[:, :, : group.depth].sum(1).transpose(0, 1)
    offset = 0
    for start, stop in group.ancestors:
        target[start:stop] += above[offset : offset + stop - start]
        offset += stop - start
    for index, start in enumerate(group.starts):
        target[start : start + group.length] += split[:, index, group.depth :].transpose(0, 1)
