"""Exact tree attention in plain torch, for every device, dtype, window and soft cap.

The tree is processed by groups (sibling runs of one length, see `layout.py`), some rows at a time: a block
of rows with the keys of its path that it sees. Keys outside a window are skipped. The backward pass computes
each block again instead of keeping its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.packing.kernel_inputs import ScoreOptions
from stepwell.packing.layout import TreeLayout

ROWS = 64
"""Rows of a run in a block. Fewer waste less on keys that come after a row."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows [runs * rows] of some runs, and keys [runs * keys] of their paths; `hidden` is [rows, keys]."""

    num_runs: int
    rows: Tensor
    keys: Tensor
    hidden: Tensor

    def take_sides(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """The block's queries, keys and values, each [heads, runs * count, D]."""
        pairs = ((query, self.rows), (key, self.keys), (value, self.keys))
        return [side[0].index_select(1, places) for side, places in pairs]

    def attend(self, how: ScoreOptions, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Outputs of the rows: [heads, runs * rows, D]."""
        (rows, keys), runs, heads = self.hidden.shape, self.num_runs, key.shape[0]
        grouped = query.view(heads, -1, runs, rows, query.shape[-1]).transpose(1, 2).flatten(2, 3)
        key, value = (side.view(heads, runs, keys, -1) for side in (key, value))
        scores = (grouped @ key.mT).to(torch.promote_types(query.dtype, torch.float32)) * how.scaling
        if how.softcap is not None:
            scores = torch.tanh(scores / how.softcap) * how.softcap
        scores = scores.view(heads, runs, -1, rows, keys).masked_fill(self.hidden, float("-inf"))
        mixed = scores.softmax(-1).to(value.dtype).flatten(2, 3) @ value
        return (
            mixed.view(heads, runs, -1, rows, value.shape[-1])
            .transpose(1, 2)
            .reshape(query.shape[0], runs * rows, -1)
        )


def blockwise_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
) -> Tensor:
    """Attention over the tree: [1, heads, T, D] in, [1, T, heads, D] out.

    On a CPU, half precision is computed in float32, because most CPUs have no half-precision units.
    """
    if query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16):
        wide = blockwise_attention(query.float(), key.float(), value.float(), layout, how)
        return wide.to(query.dtype)
    output: Tensor = _BlockwiseAttention.apply(query, key, value, layout, how)  # type: ignore[no-untyped-call]
    return output


class _BlockwiseAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: TreeLayout, how: ScoreOptions
    ) -> Tensor:
        output = query.new_zeros(query.shape[1], query.shape[2], value.shape[-1])
        for block in _list_blocks(layout, how.window):
            part = block.attend(how, *block.take_sides(query, key, value))
            output.index_copy_(1, block.rows, part)
        ctx.save_for_backward(query, key, value)
        ctx.layout, ctx.how = layout, how
        return output.transpose(0, 1)[None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        sides, outer = ctx.saved_tensors, grad_output[0].transpose(0, 1)
        totals = [torch.zeros_like(side, memory_format=torch.contiguous_format) for side in sides]
        for block in _list_blocks(ctx.layout, ctx.how.window):
            with torch.enable_grad():
                leaves = [side.requires_grad_() for side in block.take_sides(*sides)]
                part = block.attend(ctx.how, *leaves)
            grads = torch.autograd.grad(part, leaves, outer.index_select(1, block.rows))
            places = (block.rows, block.keys, block.keys)
            for total, grad, place in zip(totals, grads, places, strict=True):
                total[0].index_add_(1, place, grad)
        return *totals, None, None


def _list_blocks(layout: TreeLayout, window: int | None) -> list[_Block]:
    """The blocks of a tree, kept with it: every layer uses them."""
    key = ("blocks", window)
    if key not in layout.cache:
        layout.cache[key] = list(_iterate_blocks(layout, window))
    blocks: list[_Block] = layout.cache[key]
    return blocks


def _iterate_blocks(layout: TreeLayout, window: int | None) -> Iterator[_Block]:
    tokens = torch.arange(layout.num_tokens, device=layout.device)
    for group in layout.run_groups:
        runs, length = len(group.starts), group.length
        own = torch.stack([tokens[start : start + length] for start in group.starts])
        above = torch.cat([tokens[start:stop] for start, stop in (*group.ancestors, (0, 0))])
        paths = torch.cat([above.expand(runs, -1), own], 1)
        for first in range(0, length, ROWS):
            last = min(first + ROWS, length)
            low = 0 if window is None else max(0, group.depth + first - window + 1)
            row = tokens[group.depth + first : group.depth + last, None]
            column = tokens[None, low : group.depth + last]
            hidden = column > row if window is None else (column > row) | (row - column >= window)
            keys = paths[:, low : group.depth + last].flatten()
            yield _Block(runs, own[:, first:last].flatten(), keys, hidden)
