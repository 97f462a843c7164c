"""Arithmetic on contiguous segments of a flat tensor: the tool that all credit functions use.

A `Segments` cuts `num_items` items into consecutive segments: action tokens into steps, action tokens into
trajectories, steps into trajectories. Every operation is a few whole-tensor instructions. Their number grows
with the logarithm of the longest segment, never with the number of items or segments.

    lengths   2     3
    items     a b   c d e
    index     0 0   1 1 1
    left      1 0   2 1 0

Invariants:
* a segment's result depends on that segment's items alone, bit for bit: the rest of the batch changes
  nothing;
* `sum`, `mean` and `expand` are differentiable and repeat exactly on every device;
* no operation divides by a power of a discount, so long segments neither overflow nor lose
  their early items.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Segments:
    """`lengths` [segment], each at least 1, and their sum `num_items`."""

    lengths: Tensor
    num_items: int

    @property
    def num_segments(self) -> int:
        return self.lengths.shape[0]

    @cached_property
    def index(self) -> Tensor:
        """[item]: the segment each item belongs to."""
        segments = torch.arange(self.num_segments, device=self.lengths.device)
        return segments.repeat_interleave(self.lengths, output_size=self.num_items)

    @cached_property
    def last(self) -> Tensor:
        """[segment]: the item that ends each segment."""
        return self.lengths.cumsum(0) - 1

    @cached_property
    def first(self) -> Tensor:
        """[segment]: the item that starts each segment."""
        return self.last - self.lengths + 1

    @cached_property
    def position(self) -> Tensor:
        """[item]: how many items of the same segment come before it."""
        return torch.arange(self.num_items, device=self.lengths.device) - self.first[self.index]

    @cached_property
    def left(self) -> Tensor:
        """[item]: how many items of the same segment come after it."""
        return self.last[self.index] - torch.arange(self.num_items, device=self.lengths.device)

    @cached_property
    def longest(self) -> int:
        return int(self.lengths.max())

    def sum(self, x: Tensor) -> Tensor:
        """[item] -> [segment]"""
        # unsafe=True skips a check of the lengths that the Timeline has made already.
        return torch.segment_reduce(x, "sum", lengths=self.lengths, unsafe=True)

    def mean(self, x: Tensor) -> Tensor:
        """[item] -> [segment]"""
        return self.sum(x) / self.lengths

    def expand(self, x: Tensor) -> Tensor:
        """[segment] -> [item]: every item gets its segment's number."""
        return x[self.index]

    def at_last(self, x: Tensor) -> Tensor:
        """[segment] -> [item]: the number on the segment's last item, zero elsewhere."""
        return x.new_zeros(self.num_items).index_copy(0, self.last, x)

    def shift(self, x: Tensor, after_last: Tensor) -> Tensor:
        """[item]: the number of the next item; `after_last` [segment] follows the last one."""
        return x.roll(-1).index_copy(0, self.last, after_last)

    def sum_discounted(self, x: Tensor, decay: float) -> Tensor:
        """y_i = x_i + decay · y_{i+1} inside each segment.

        Solved by doubling: after round n, y_i holds the first 2^n terms of its sum, and the next
        2^n terms are what position i + 2^n holds, times decay^(2^n).
        """
        y = x.clone()
        span = 1
        while span < self.longest and decay**span > 0.0:
            inside = self.left[:-span] >= span
            y[:-span] += torch.where(inside, y[span:], 0.0) * decay**span
            span *= 2
        return y
