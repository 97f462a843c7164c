"""Paired differences of methods over the same seeds and tasks, and what such a comparison can detect.

    compare_pairs                  difference of two methods over the same seeds and tasks, with its error
    pool_spread                    how differently seeds moved the methods of a study
    compute_detectable_difference  the smallest difference that a study of this size finds

Two methods run with the same seeds on the same held-out tasks, so they are compared pair by pair: what a seed
or a task does to both cancels. A difference d[seed, task] varies with both. Its error counts both
sources (two-way clusters): variance of the means by seed, plus that of the means by task, less that of single
cells, which both contain. The interval uses Student's t with one less than the number of seeds, or of tasks
where there is one seed; a single seed says nothing about other seeds.

Power: methods of one seed share a warm start and tasks, so what counts is how differently a seed moves them
(`pool_spread`, or `SEED_SPREAD` before anything has run) and that held-out attempts are finite. A difference
is detectable if 80 % of such studies would find it with 95 % confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from stepwell.core.errors import InputError

SEED_SPREAD = 0.08
"""A careful guess of `pool_spread` without the share of finite attempts: three quarters of the environments
of the studies under `benchmarks/results/` lie at or below it (`tests/studies/test_paired_differences.py`)."""
POWER = 0.8
MIN_FREEDOM = 4


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean difference over pairs with its standard error and 95 % interval; no error without two pairs."""

    mean: float
    error: float | None
    low: float | None
    high: float | None
    num_seeds: int
    num_tasks: int

    @property
    def is_told_apart(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:+.3f}"
        return f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def compare_pairs(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> PairedDifference:
    """The difference ours − theirs over [seed][task]; both have the same seeds and tasks, in one order.

    Where only a mean per seed is known, give one number per seed: [[0.8], [0.7], [0.9]].
    """
    first, second = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    if first.shape != second.shape or first.ndim != 2 or first.size == 0:
        raise InputError(
            f"ours has the shape {list(first.shape)}, theirs {list(second.shape)}; "
            "give [seed][task] of the same seeds and tasks"
        )
    cells = first - second
    num_seeds, num_tasks = cells.shape
    mean = float(cells.mean())
    by_seed, by_task = (
        _compute_variance_of_mean(cells.mean(axis=1)),
        _compute_variance_of_mean(cells.mean(axis=0)),
    )
    if num_seeds > 1 and num_tasks > 1:
        both = by_seed + by_task - _compute_variance_of_mean(cells.ravel())
        variance, freedom = max(both, by_seed, by_task), num_seeds - 1
    elif cells.size > 1:
        variance, freedom = max(by_seed, by_task), cells.size - 1
    else:
        return PairedDifference(mean, None, None, None, num_seeds, num_tasks)
    error = math.sqrt(variance)
    half = compute_student_quantile(0.975, freedom) * error
    return PairedDifference(mean, error, mean - half, mean + half, num_seeds, num_tasks)


def pool_spread(methods: Sequence[Mapping[int, float]]) -> float | None:
    """Deviation of a run from what its method and its seed explain; None if too few runs tell it.

    Each method has its success by seed. The spread of a difference of two methods over seeds is √2 times
    this. It counts finite held-out attempts too.
    """
    squares, freedom = 0.0, 0
    for first, second in combinations(methods, 2):
        differences = np.array([first[seed] - second[seed] for seed in first.keys() & second.keys()])
        if differences.size > 1:
            squares += float(((differences - differences.mean()) ** 2).sum())
            freedom += differences.size - 1
    num_seeds = len({seed for method in methods for seed in method})
    if sum(map(len, methods)) - len(methods) - num_seeds + 1 < MIN_FREEDOM or not freedom:
        return None
    return math.sqrt(squares / freedom / 2)


def compute_detectable_difference(
    num_seeds: int,
    num_tasks: int,
    num_attempts: int = 1,
    *,
    seed_spread: float = SEED_SPREAD,
    success: float = 0.5,
) -> float | None:
    """The smallest difference that 80 % of such studies find with 95 % confidence; None with one seed.

    >>> round(compute_detectable_difference(3, 256), 2), round(compute_detectable_difference(5, 256, 8), 2)
    (0.26, 0.12)
    """
    if num_seeds < 2 or num_tasks < 1:
        return None
    per_run = seed_spread**2 + success * (1 - success) / (num_tasks * num_attempts)
    error = math.sqrt(2 * per_run / num_seeds)
    freedom = num_seeds - 1
    return (compute_student_quantile(0.975, freedom) + compute_student_quantile(POWER, freedom)) * error


def compute_student_quantile(share: float, freedom: int) -> float:
    """The value below which Student's t with this many degrees of freedom lies with probability `share`.

    >>> round(compute_student_quantile(0.975, 2), 3), round(compute_student_quantile(0.975, 1000), 2)
    (4.303, 1.96)
    """
    if freedom < 1 or not 0 < share < 1:
        raise InputError(f"share {share} must lie between 0 and 1, and freedom {freedom} be at least 1")
    if share < 0.5:
        return -compute_student_quantile(1 - share, freedom)
    return _invert(lambda t: compute_student_cdf(t, freedom), share)


def compute_student_cdf(t: float, freedom: int) -> float:
    """Probability that Student's t is at most `t`; a finite sum for whole degrees of freedom."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    term, total = (cosine, cosine) if freedom % 2 else (1.0, 1.0)
    if freedom == 1:
        total = 0.0
    for k in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = 2 * (angle + sine * total) / math.pi if freedom % 2 else sine * total
    return min(max(0.5 + inside / 2, 0.0), 1.0)


def _invert(rising: Callable[[float], float], target: float) -> float:
    low, high = 0.0, 1.0
    while rising(high) < target:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2


def _compute_variance_of_mean(values: np.ndarray) -> float:
    return 0.0 if values.size < 2 else float(values.var(ddof=1)) / values.size
