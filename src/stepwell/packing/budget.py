"""Cuts sorted steps into microbatches that fit a token budget.

Steps stay whole and in tree order, so that what shares a prefix stays together. A cut
before a step costs the tokens it shares with its predecessor (they are then computed
twice). Among all ways to cut, the one with the fewest microbatches is taken, and among
those the one that computes the fewest tokens.

A smaller set of sequences never has a larger tree, so the microbatches that may end at
step j begin anywhere in a window whose left edge only moves right; one pass with a
queue of candidates finds the best cut for every j.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from stepwell.packing.tree import IntArray


def cut_by_budget(lengths: IntArray, shared: IntArray, token_budget: int | None) -> list[tuple[int, int]]:
    """Cut sorted steps into ranges [start, stop), each with a tree of at most `token_budget` tokens.

    Every length must fit the budget by itself.
    """
    count = int(lengths.size)
    fresh = np.concatenate([[0], np.cumsum(lengths - shared)])
    if token_budget is None or fresh[-1] <= token_budget:
        return [(0, count)]
    begin = _find_best_starts(fresh.tolist(), shared.tolist(), token_budget)
    ranges: list[tuple[int, int]] = []
    stop = count
    while stop > 0:
        ranges.append((begin[stop], stop))
        stop = begin[stop]
    return ranges[::-1]


def _find_best_starts(fresh: list[int], shared: list[int], budget: int) -> list[int]:
    """For every end, where its last microbatch begins in the best way to cut what is before it."""
    per_microbatch = fresh[-1] + sum(shared) + 1  # outweighs any number of recomputed tokens
    cost = [0] * len(fresh)  # of the best way to cut the steps before an end
    begin = [0] * len(fresh)
    candidates: deque[int] = deque()  # beginnings, by rising place and rising price
    price = [0] * len(fresh)  # of beginning a microbatch at a step
    for stop in range(1, len(fresh)):
        start = stop - 1
        price[start] = cost[start] + shared[start] + per_microbatch
        while candidates and price[candidates[-1]] >= price[start]:
            candidates.pop()
        candidates.append(start)
        while fresh[stop] - fresh[candidates[0]] + shared[candidates[0]] > budget:
            candidates.popleft()
        begin[stop] = candidates[0]
        cost[stop] = price[candidates[0]]
    return begin
