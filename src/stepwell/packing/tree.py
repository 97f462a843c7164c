"""The prefix tree of a set of token sequences, laid out in depth-first order.

Every distinct prefix is one token of the tree, stored once no matter how many sequences share it. Tokens are
numbered in depth-first order, so the tokens below token k are exactly k+1 .. subtree_end[k]-1 and

    k is an ancestor of q, or q itself   <=>   k <= q < subtree_end[k]

Attention needs nothing else: no mask is ever stored.

The tree is not built token by token. Sequences are sorted (a prefix comes before its extensions). The length
that each shares with its predecessor determines the tree: the rest of the sequence is new and continues the
numbering, and the predecessor's tokens below the shared part are complete. Each sequence needs a few array
operations.

Invariants
* `positions[t]` is the depth of token t: its place in every sequence that contains it.
* `token_ids.size` is the number of distinct prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core.arrays import count_common_prefix

IntArray = npt.NDArray[np.int64]
KeyArray = npt.NDArray[Any]
"""Sequences to sort and compare: uint32 token ids, or uint64 (image, token id) pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """The tokens of a tree in depth-first order.

    Two answers [7, 8] and [9] to the prompt [5, 6]:

        index        0  1  2  3  4
        token_ids    5  6  7  8  9
        positions    0  1  2  3  2
        subtree_end  5  5  4  4  5
    """

    token_ids: IntArray
    positions: IntArray
    subtree_end: IntArray

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.size)

    def find_path(self, token: int) -> IntArray:
        """The tokens from the root to `token`, including it."""
        return np.flatnonzero(self.subtree_end[: token + 1] > token)


def sort_sequences(keys: Sequence[KeyArray]) -> IntArray:
    """Return the order that puts every sequence next to the one with which it shares the most."""
    as_bytes = [key.astype(key.dtype.newbyteorder(">")).tobytes() for key in keys]
    return np.array(sorted(range(len(keys)), key=as_bytes.__getitem__), dtype=np.int64)


def count_shared_lengths(keys: Sequence[KeyArray], order: IntArray) -> IntArray:
    """Count the leading tokens that each sequence of `order` shares with the one before it."""
    shared = np.zeros(order.size, dtype=np.int64)
    for place in range(1, order.size):
        before, own = keys[order[place - 1]], keys[order[place]]
        is_extended = before.tobytes() == own[: before.size].tobytes()  # (comparing bytes is the fastest way)
        shared[place] = before.size if is_extended else count_common_prefix(before, own)
    return shared


def merge_short_runs(shared: IntArray, lengths: IntArray, min_run: int) -> IntArray:
    """Return `shared` with branches moved up if they would leave a run of fewer than `min_run` tokens.

    Boards under one prompt may have a row or two in common. A separate run for those few tokens costs
    attention more than computing them again. A branch at depth m below one at depth b becomes a branch at b
    when m - b < min_run. A sequence that extends the whole of its predecessor does not branch, so nothing is
    moved.

    >>> merge_short_runs(np.array([0, 9, 7, 9]), np.array([12, 12, 12, 12]), 4).tolist()
    [0, 7, 7, 7]
    """
    result = shared.tolist()
    depths = [-1, *result[1:]]  # the first sequence bounds all branches
    left, right = _find_smaller(depths)
    is_extended = [False, *(shared[1:] == lengths[:-1]).tolist()]
    kept: dict[
        tuple[int, int], int
    ] = {}  # of a branching node: the places that bound it, and where it branches
    for place in sorted(range(1, len(depths)), key=depths.__getitem__):
        before, after = node = left[place], right[place]
        if node not in kept:
            base = 0
            if depths[before] >= 0 and (after == len(depths) or depths[before] >= depths[after]):
                base = result[before]
            elif after < len(depths):
                base = kept[left[after], right[after]]
            kept[node] = depths[place] if depths[place] - base >= min_run else base
        result[place] = depths[place] if is_extended[place] else kept[node]
    return np.array(result, dtype=shared.dtype)


def _find_smaller(depths: list[int]) -> tuple[list[int], list[int]]:
    """For every place, the nearest places with a smaller depth before it and after it."""
    left, right = [0] * len(depths), [len(depths)] * len(depths)
    rising: list[int] = []
    for place, depth in enumerate(depths):
        while rising and depths[rising[-1]] > depth:
            right[rising.pop()] = place
        before = rising[-1] if rising else 0
        left[place] = left[before] if rising and depths[before] == depth else before
        rising.append(place)
    return left, right


def grow_tree(
    sequences: Sequence[npt.NDArray[Any]], shared: IntArray, first_site: IntArray
) -> tuple[PrefixTree, list[IntArray]]:
    """Build the tree of sorted `sequences`, and list each one's tokens from depth `first_site` to its end.

    `shared[i]` is the length that sequence i shares with sequence i-1; it is 0 for the first.
    """
    lengths = np.array([sequence.size for sequence in sequences], dtype=np.int64)
    num_tokens = int((lengths - shared).sum())
    token_ids = np.empty(num_tokens, dtype=np.int64)
    positions = np.empty(num_tokens, dtype=np.int64)
    subtree_end = np.full(num_tokens, num_tokens, dtype=np.int64)
    path = np.empty(int(lengths.max()), dtype=np.int64)
    depths = np.arange(int(lengths.max()), dtype=np.int64)
    sites: list[IntArray] = []
    size, depth = 0, 0
    for sequence, kept, first in zip(sequences, shared.tolist(), first_site.tolist(), strict=True):
        subtree_end[path[kept:depth]] = size
        depth = sequence.size
        new = size + depth - kept
        token_ids[size:new] = sequence[kept:]
        positions[size:new] = depths[kept:depth]
        path[kept:depth] = depths[: depth - kept] + size
        sites.append(path[first:depth].copy())
        size = new
    return PrefixTree(token_ids, positions, subtree_end), sites
