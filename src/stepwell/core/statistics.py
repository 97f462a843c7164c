"""Statistics of success rates: intervals, and differences between shares.

    compute_wilson_interval  95 % interval of a share
    count_independent        attempts on few tasks as a number of independent ones
    compare_shares           difference of two shares of independent attempts, in standard errors

`studies/paired_differences.py` compares methods over seeds and tasks.
"""

from __future__ import annotations

import math

import numpy as np

Z95 = 1.959964


def compute_wilson_interval(wins: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    >>> [round(x, 3) for x in compute_wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if count == 0:
        return 0.0, 1.0
    share, z2 = wins / count, Z95 * Z95
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return (0.0 if wins == 0 else centre - half), (1.0 if wins == count else centre + half)


def count_independent(outcomes: np.ndarray) -> float:
    """The number of independent attempts with the same uncertainty as `outcomes` [task, attempt]."""
    num_tasks, num_attempts = (int(size) for size in outcomes.shape)
    share = float(outcomes.mean())
    if num_attempts == 1 or num_tasks == 1 or share in (0.0, 1.0):
        return float(num_tasks)
    variance = float(outcomes.mean(axis=1).var(ddof=1)) / num_tasks
    most = float(num_tasks * num_attempts)
    return most if variance == 0 else min(max(share * (1 - share) / variance, num_tasks), most)


def compare_shares(first: float, first_count: float, second: float, second_count: float) -> float:
    """The difference first − second of two shares of independent attempts, in standard errors."""
    pooled = (first * first_count + second * second_count) / (first_count + second_count)
    variance = pooled * (1 - pooled) * (1 / first_count + 1 / second_count)
    return 0.0 if variance == 0 else (first - second) / math.sqrt(variance)
