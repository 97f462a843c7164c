"""Orders of documents: the best by score, and reciprocal rank fusion of several orders.

Equal scores are ordered by the documents' places, so that an order is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.intp]
Scores = npt.NDArray[np.floating[Any]]
BLOCK = 64
RRF_CONSTANT = 60  # how slowly the weight of a rank falls, as the method's authors chose it


def find_best(scores: Scores, k: int) -> Places:
    """Places of the `k` highest scores, best first; of equal ones the earlier place."""
    if k < len(scores):
        candidates = np.flatnonzero(scores >= _lower_bound(scores, k))
    else:
        candidates = np.arange(len(scores))
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def _lower_bound(scores: Scores, k: int) -> Any:
    """A score that at least `k` reach: the k-th of the blocks' highest, far cheaper than the k-th of all."""
    starts = np.arange(0, len(scores), BLOCK)
    highest = np.maximum.reduceat(scores, starts) if k <= len(starts) else scores
    return np.partition(highest, len(highest) - k)[len(highest) - k]


def fuse_rankings(orders: Sequence[Places]) -> list[tuple[int, float]]:
    """(place, sum of 1 / (60 + rank) over the orders that hold it), best first.

    >>> [(place, round(score, 5)) for place, score in fuse_rankings([np.array([4, 2]), np.array([2])])]
    [(2, 0.03252), (4, 0.01639)]
    """
    totals: dict[int, float] = {}
    for order in orders:
        for rank, place in enumerate(order.tolist(), start=1):
            totals[place] = totals.get(place, 0.0) + 1.0 / (RRF_CONSTANT + rank)
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))
