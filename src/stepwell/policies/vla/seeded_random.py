"""Random numbers that depend only on a seed and an index, for many seeds at once.

Each request has its own seed, and its draws must not depend on the rest of the batch. A generator object per
request would cost more than the forward pass. Here the i-th number of a seed is a hash of both (the finaliser
of SplitMix64, applied twice). A few array operations compute it for the whole batch, with the same result on
every machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def draw_uniforms(seeds: npt.ArrayLike, count: int) -> FloatArray:
    """Uniform numbers in (0, 1), excluding 0 and 1: [seeds, count]."""
    starts = _mix_bits(np.asarray(seeds, dtype=np.uint64))
    with np.errstate(over="ignore"):
        words = _mix_bits(starts[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def draw_normals(seeds: npt.ArrayLike, count: int) -> FloatArray:
    """Standard normal numbers by Box-Muller pairs: [seeds, count]."""
    half = (count + 1) // 2
    drawn = draw_uniforms(seeds, 2 * half)
    radius, angle = np.sqrt(-2.0 * np.log(drawn[:, :half])), 2.0 * np.pi * drawn[:, half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)[:, :count]


def _mix_bits(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        words = words + _GOLDEN
        words = (words ^ (words >> np.uint64(30))) * _MIX_1
        words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))
