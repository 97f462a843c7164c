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
        shared[place] = count_common_prefix(keys[order[place - 1]], keys[order[place]])
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
    result = shared.copy()
    waiting = [(0, shared.size, 0)]
    while waiting:
        first, stop, base = waiting.pop()
        if stop - first < 2:
            continue
        inner = shared[first + 1 : stop]
        depth = int(inner.min())
        kept = depth if depth - base >= min_run else base
        cuts = (np.flatnonzero(inner == depth) + first + 1).tolist()
        start, start_base = first, kept
        for cut in [*cuts, stop]:
            waiting.append((start, cut, start_base))
            if cut < stop:
                goes_on = shared[cut] == lengths[cut - 1]
                start, start_base = cut, depth if goes_on else kept
                result[cut] = start_base
    return result


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
