"""Marks of positions: one number for the positions at which a model read the tokens of a sequence.

The engine marks what it computed with, the trainer what its packing gives the same tokens. Equal positions
have equal marks, in engine and trainer. One token at another position, twice or not at all changes the mark.

    mark of a sequence = sum over its tokens of mix(place in the sequence, position)      (modulo 2**52)

Invariants
* Marks of tokens add up, so that sequences which share a prefix share its sum.
* A token with the same position on every axis has the mark of that one position: text has one axis in some
  models and several equal ones in others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.core.arrays import AnyArray

UIntArray = npt.NDArray[np.uint64]

_BITS = np.uint64(2**52 - 1)  # such numbers are exact in every JSON reader
_MIX_PLACE = np.uint64(0x9E3779B97F4A7C15)
_MIX_POSITION = np.uint64(0xBF58476D1CE4E5B9)
_MIX_AGAIN = np.uint64(0x94D049BB133111EB)
_AXIS = 0x2545F491  # odd


def mark_tokens(places: AnyArray, positions: AnyArray) -> UIntArray:
    """Mark each token at `places` [...] of its sequence with `positions` [...] or [axes, ...]."""
    joined = positions
    if positions.ndim > places.ndim:
        joined = positions[0].astype(np.int64)
        for axis in range(1, len(positions)):
            joined = joined + (positions[axis] - positions[0]) * np.int64(_AXIS + 2 * axis)
    mixed = places.astype(np.uint64) * _MIX_PLACE ^ joined.astype(np.int64).astype(np.uint64) * _MIX_POSITION
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX_AGAIN
    marks: UIntArray = mixed ^ (mixed >> np.uint64(32))
    return marks


def fold_sums(sums: UIntArray) -> npt.NDArray[np.int64]:
    """Turn sums of token marks (modulo 2**64) into marks of sequences."""
    return (sums & _BITS).astype(np.int64)


def mark_sequence(positions: AnyArray) -> int:
    """Mark a whole sequence with `positions` [T] or [axes, T]."""
    places = np.arange(positions.shape[-1])
    if (positions == places).all():  # as in text: these sums are looked up
        return _read_counted(len(places))
    return int(fold_sums(mark_tokens(places, positions).sum(dtype=np.uint64)))


_counted = np.zeros(1, dtype=np.int64)


def _read_counted(length: int) -> int:
    """Return the mark of a sequence whose positions count from 0."""
    global _counted
    counted = _counted  # another thread may put a shorter table there
    if length >= len(counted):
        places = np.arange(max(length, 2 * len(counted)))
        sums = np.cumsum(mark_tokens(places, places), dtype=np.uint64)
        counted = _counted = np.concatenate([np.zeros(1, dtype=np.int64), fold_sums(sums)])
    return int(counted[length])
