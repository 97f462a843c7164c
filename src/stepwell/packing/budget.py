"""Cuts sorted steps into microbatches that fit a token budget.

Steps stay whole and in tree order, so that steps with a shared prefix stay together. A cut before a step
costs the tokens it shares with its predecessor, because they are computed twice. The chosen cut has the
fewest microbatches and, among those, computes the fewest tokens.

A subset of sequences never has a larger tree. The possible starts of a microbatch that ends at step j
therefore form a window whose left edge only moves right. One pass with a queue of candidates finds the best
cut for every j.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from stepwell.packing.tree import IntArray


def cut_by_budget(lengths: IntArray, shared: IntArray, token_budget: int | None) -> list[tuple[int, int]]:
    """Cut sorted steps into ranges [start, stop), each with a tree of at most `token_budget` tokens.

    Every single step must fit the budget.
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
    """For every end, the start of the last microbatch in the best cut."""
    per_microbatch = fresh[-1] + sum(shared) + 1  # larger than any number of recomputed tokens
    cost = [0] * len(fresh)  # of the best cut of the steps before each end
    begin = [0] * len(fresh)
    candidates: deque[int] = deque()  # possible starts, by rising place and rising price
    price = [0] * len(fresh)  # of starting a microbatch at each step
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
