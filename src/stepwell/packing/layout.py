"""A tree in the form that attention needs, on one device.

`TreeLayout` reaches every attention layer as one argument of the model's forward call. It holds the closed
form (`subtree_end`, `positions`) for the kernel that masks token by token, and the tree's *runs* for kernels
that work run by run.

A run is a maximal stretch without branches: consecutive tokens, each the only child of the one before. Its
keys are its ancestors (a few contiguous ranges) followed by the run itself, so key number j of a run's path
is the ancestor at depth j. Sibling runs of equal length share their ancestors and are computed together.

All tokens below a branching run attend to the whole run, and they form one contiguous range. Runs with the
same number of runs above them form a *level*. The ranges below the runs of one level do not overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from stepwell.packing.tree import PrefixTree

Range = tuple[int, int]

RUN_TOKENS_TOGETHER = 256
"""Sibling runs are joined up to this many tokens; larger groups already use all cores."""


@dataclass(frozen=True, slots=True)
class EqualSpans:
    """Runs of one length below the same ancestors: `starts[i] .. starts[i] + length`."""

    ancestors: tuple[Range, ...]
    depth: int
    starts: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class BranchLevel:
    """Branching runs of one level: tokens `rows[i]` attend to all of the run `keys[i]`."""

    rows: tuple[Range, ...]
    keys: tuple[Range, ...]


class TreeLayout:
    """One tree on one device, padded to `num_tokens` tokens that see only themselves."""

    def __init__(self, tree: PrefixTree, device: torch.device, num_tokens: int | None = None) -> None:
        self.tree = tree
        self.device = device
        self.num_tokens = num_tokens or tree.num_tokens
        self.cache: dict[Any, Any] = {}
        """Data that kernels compute once and use in every layer."""

    @cached_property
    def ends(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """`subtree_end` of every token, padding included."""
        ends = np.arange(1, self.num_tokens + 1, dtype=np.int32)
        ends[: self.tree.num_tokens] = self.tree.subtree_end
        return ends

    @cached_property
    def depths(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Depth of every token; padding has depth 0."""
        depths = np.zeros(self.num_tokens, dtype=np.int32)
        depths[: self.tree.num_tokens] = self.tree.positions
        return depths

    @cached_property
    def max_depth(self) -> int:
        return int(self.tree.positions.max())

    @cached_property
    def runs(self) -> list[tuple[int, int, tuple[Range, ...]]]:
        """(start, stop, ancestor ranges) of every run, in depth-first order, without padding."""
        return _find_runs(self.tree)

    @cached_property
    def levels(self) -> tuple[BranchLevel, ...]:
        """The branching runs, grouped by the number of runs above them."""
        found: list[tuple[list[Range], list[Range]]] = []
        open_ends: list[int] = []  # ends of the subtrees of the runs above
        for start, stop, _ in self.runs:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            end = int(self.tree.subtree_end[stop - 1])
            if stop < end:
                if len(open_ends) == len(found):
                    found.append(([], []))
                found[len(open_ends)][0].append((stop, end))
                found[len(open_ends)][1].append((start, stop))
            open_ends.append(end)
        return tuple(BranchLevel(tuple(rows), tuple(keys)) for rows, keys in found)

    @cached_property
    def run_groups(self) -> tuple[EqualSpans, ...]:
        """The tree's runs, with siblings of equal length grouped, without padding."""
        groups: dict[tuple[tuple[Range, ...], int], list[int]] = {}
        for start, stop, ancestors in self.runs:
            groups.setdefault((ancestors, stop - start), []).append(start)
        result: list[EqualSpans] = []
        for (ancestors, length), starts in groups.items():
            depth = sum(stop - start for start, stop in ancestors)
            together = max(1, RUN_TOKENS_TOGETHER // length)
            for i in range(0, len(starts), together):
                result.append(EqualSpans(ancestors, depth, tuple(starts[i : i + together]), length))
        return tuple(result)


def _find_runs(tree: PrefixTree) -> list[tuple[int, int, tuple[Range, ...]]]:
    """(start, stop, ancestor ranges) of every run, in depth-first order."""
    is_child = tree.positions[1:] == tree.positions[:-1] + 1
    is_only = tree.subtree_end[1:] == tree.subtree_end[:-1]
    starts = np.concatenate([[0], np.flatnonzero(~(is_child & is_only)) + 1])
    stops = np.concatenate([starts[1:], [tree.num_tokens]]).tolist()
    depths = tree.positions[starts].tolist()
    path: list[Range] = []  # ranges from the root to the end of the previous run
    runs = []
    for start, stop, depth in zip(starts.tolist(), stops, depths, strict=True):
        path = _shorten_path(path, depth)
        runs.append((start, stop, tuple(path)))
        if path and path[-1][1] == start:
            path[-1] = (path[-1][0], stop)
        else:
            path.append((start, stop))
    return runs


def _shorten_path(path: list[Range], depth: int) -> list[Range]:
    """The part of a path above `depth`."""
    kept: list[Range] = []
    for start, stop in path:
        if depth <= 0:
            break
        kept.append((start, min(stop, start + depth)))
        depth -= stop - start
    return kept
