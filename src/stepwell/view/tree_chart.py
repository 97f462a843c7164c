"""The prefix tree of a batch as SVG: what dialogues and siblings share is drawn once.

    x: position in the sequence      y: one row per sequence that ends there

A block is a run of tokens that the same sequences contain, as the trainer packs them: tokens of images are
alike only if the images are. Its height is the number of sequences below it, so the area of a block is what
was computed once, and the whole height would be the cost without sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepwell.core import Step, TokenAction, TokenState, Trajectory
from stepwell.core.arrays import AnyArray
from stepwell.monitors.axes import choose_ticks, format_ticks
from stepwell.monitors.svg import PAPER, escape_text, get_color, make_element, make_svg, make_text
from stepwell.packing.batch import tabulate_steps
from stepwell.packing.tree import count_shared_lengths, sort_sequences

MAX_SEQUENCES = 160
_LEFT, _TOP, _AXIS, _WIDTH = 8, 6, 26, 860


@dataclass(frozen=True, slots=True)
class TreeBlock:
    """A run of tokens: from `start` to `stop`, shared by sequences `first` to `last`."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def num_sequences(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class BatchTree:
    """The blocks of a batch, or of its first trajectories if it is large, and what sharing saves."""

    blocks: list[TreeBlock]
    num_trajectories: int
    num_sequences: int
    num_tokens: int
    num_without: int

    @property
    def shared_fraction(self) -> float:
        """The share of tokens that need no computation of their own."""
        return 1.0 - self.num_tokens / max(1, self.num_without)


def build_batch_tree(trajectories: Sequence[Trajectory]) -> BatchTree | None:
    """The tree of the steps of language agents; None if there are none."""
    found = [[step for step in trajectory.steps if _has_tokens(step)] for trajectory in trajectories]
    ends = np.cumsum([len(steps) for steps in found])
    num_drawn = max(1, int(np.searchsorted(ends, MAX_SEQUENCES, side="right")))
    steps = [step for few in found[:num_drawn] for step in few]
    if not steps:
        return None
    keys = tabulate_steps(steps).keys
    order = sort_sequences(keys)
    shared = count_shared_lengths(keys, order)
    lengths = np.array([keys[i].size for i in order])
    blocks = _find_blocks(shared, lengths)
    return BatchTree(
        blocks, len(found[:num_drawn]), len(keys), int((lengths - shared).sum()), int(lengths.sum())
    )


def draw_batch_tree(tree: BatchTree) -> str:
    """The tree as an icicle from left to right."""
    row = max(1.5, min(14.0, 420 / tree.num_sequences))
    longest = max(block.stop for block in tree.blocks)
    scale = (_WIDTH - 2 * _LEFT) / max(1, longest)
    bottom = _TOP + row * tree.num_sequences
    parts = []
    for block in tree.blocks:
        words = f"{block.stop - block.start} tokens in {block.num_sequences} sequences"
        color = 2 if block.num_sequences > 1 else 0
        strength = min(1.0, 0.35 + 0.13 * np.log2(block.num_sequences)) if block.num_sequences > 1 else 0.45
        parts.append(
            make_element(
                "rect",
                make_element("title", escape_text(words)),
                x=_LEFT + block.start * scale,
                y=_TOP + block.first * row,
                width=max(0.4, (block.stop - block.start) * scale),
                height=row * block.num_sequences,
                style=f"fill:{get_color(color)};opacity:{strength:.2f};stroke:{PAPER};stroke-width:.7",
            )
        )
    ticks = choose_ticks(0, longest, 8, whole=True)
    for tick, label in zip(ticks, format_ticks(ticks), strict=True):
        parts.append(
            make_text(_LEFT + tick * scale, bottom + 16, label, anchor=_choose_anchor(tick, longest))
        )
    return make_svg(_WIDTH, bottom + _AXIS, "prefix tree of the batch", parts)


def _choose_anchor(tick: float, longest: int) -> str:
    """Labels at the ends of the axis stay inside the drawing."""
    return "start" if not tick else "end" if tick > 0.97 * longest else "middle"


def _has_tokens(step: Step) -> bool:
    return isinstance(step.state, TokenState) and isinstance(step.action, TokenAction)


def _find_blocks(shared: AnyArray, lengths: AnyArray) -> list[TreeBlock]:
    """Every maximal run of tokens that the same neighbouring sequences contain."""
    blocks: list[TreeBlock] = []
    waiting = [(0, len(lengths) - 1, 0)]
    while waiting:
        first, last, start = waiting.pop()
        inner = shared[first + 1 : last + 1]
        stop = int(min([lengths[first], *inner])) if len(inner) else int(lengths[first])
        if stop > start:
            blocks.append(TreeBlock(start, stop, first, last))
        cuts = [first, *(first + 1 + np.flatnonzero(inner == stop)).tolist(), last + 1]
        if len(inner):
            waiting += [(low, high - 1, stop) for low, high in pairwise(cuts)]
    return sorted(blocks, key=lambda block: (block.start, block.first))
