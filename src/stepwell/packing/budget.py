"""Cuts sorted steps into microbatches that fit a token budget.

Steps stay whole and in tree order, so that steps with a shared prefix stay together. A cut before a step
costs the tokens it shares with its predecessor, because they are computed twice. The chosen cut has the
fewest microbatches and, among those, computes the fewest tokens.

Where steps belong together (the steps of a trajectory whose ratio a loss reads), no cut parts them, unless
they alone exceed the budget. Those are then cut on their own, as if they did not belong together.

A subset of sequences never has a larger tree. The possible starts of a microbatch that ends at step j
therefore form a window whose left edge only moves right. One pass with a queue of candidates finds the best
cut for every j.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from stepwell.packing.tree import IntArray


def cut_by_budget(
    lengths: IntArray, shared: IntArray, token_budget: int | None, units: IntArray | None = None
) -> list[tuple[int, int]]:
    """Cut sorted steps into ranges [start, stop), each with a tree of at most `token_budget` tokens.

    Every single step must fit the budget. Steps of the same unit stay together if they fit.
    """
    count = int(lengths.size)
    fresh = np.concatenate([[0], np.cumsum(lengths - shared)])
    if token_budget is None or fresh[-1] <= token_budget:
        return [(0, count)]
    if units is None:
        return _cut_items(fresh, shared, token_budget)
    places = _find_joints(units)
    ranges: list[tuple[int, int]] = []
    for first, last in _split_by_size(fresh, shared, places, token_budget):
        inside = places[first : last + 1]
        start, stop = int(inside[0]), int(inside[-1])
        if last - first == 1 and fresh[stop] - fresh[start] + shared[start] > token_budget:
            inside = np.arange(start, stop + 1)
        cuts = _cut_items(fresh[inside] - fresh[start], shared[inside[:-1]], token_budget)
        ranges += [(int(inside[a]), int(inside[b])) for a, b in cuts]
    return ranges


def _find_joints(units: IntArray) -> IntArray:
    """The places where a cut parts no unit, both ends included."""
    names, numbers = np.unique(units, return_inverse=True)
    last = np.zeros(names.size, dtype=np.int64)
    np.maximum.at(last, numbers, np.arange(units.size))
    reach = np.maximum.accumulate(last[numbers])
    return np.concatenate([[0], np.flatnonzero(reach == np.arange(units.size)) + 1])


def _split_by_size(fresh: IntArray, shared: IntArray, places: IntArray, budget: int) -> list[tuple[int, int]]:
    """Stretches of joints: every part between two joints that exceeds the budget is one of its own."""
    sizes = fresh[places[1:]] - fresh[places[:-1]] + shared[places[:-1]]
    stretches: list[tuple[int, int]] = []
    first = 0
    for number in np.flatnonzero(sizes > budget).tolist():
        stretches += [(first, number), (number, number + 1)]
        first = number + 1
    return [(a, b) for a, b in [*stretches, (first, int(sizes.size))] if a < b]


def _cut_items(fresh: IntArray, shared: IntArray, token_budget: int) -> list[tuple[int, int]]:
    """The best cut of items of which each fits; `fresh` counts the tokens before each."""
    count = int(shared.size)
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
