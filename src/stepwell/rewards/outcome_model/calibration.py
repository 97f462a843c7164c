"""From the difference of two logprobs to a probability that can be believed.

A model says log P(YES) − log P(NO). `Calibration` maps it to a probability, 1 / (1 + e^−(slope · x + shift)),
whose two numbers are fitted on validation data (Platt's method; with `shift` = 0 it is a temperature).

    fit_calibration ─► Calibration.convert ─► probabilities ─► reliability table, ECE, Brier

Invariants
* The slope is never negative: a more confident YES never becomes a less likely success.
* The fit is penalised a little towards slope 1, shift 0, so that it exists for separable and one-sided data.
* On its own data the fit is never worse than the uncalibrated probability, measured as penalised log loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import InputError

Floats = npt.NDArray[np.float64]
_PENALTY = 0.02
_ROUNDS = 100
_LONGEST = 60.0  # log-odds beyond it are as certain as a float can say


@dataclass(frozen=True, slots=True)
class Calibration:
    """The map from a difference of logprobs to a probability of success."""

    slope: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.slope) and np.isfinite(self.shift) and self.slope >= 0.0):
            raise InputError(
                f"calibration: slope {self.slope}, shift {self.shift}; the slope must be >= 0, both finite"
            )

    def convert(self, differences: npt.ArrayLike) -> Floats:
        """Probabilities of success."""
        odds = np.asarray(differences, dtype=np.float64) * self.slope + self.shift
        return _squash(odds)


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Predictions between two probabilities: their number, mean, and the share that was a success."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


def fit_calibration(differences: npt.ArrayLike, labels: Sequence[bool]) -> Calibration:
    """Fit slope and shift by damped Newton steps on the penalised log loss."""
    x, y = _check_pairs(differences, labels)
    weights = np.array([1.0, 0.0])
    design = np.stack([np.clip(x, -_LONGEST, _LONGEST), np.ones_like(x)], axis=1)
    loss = _compute_loss(design, y, weights)
    for _ in range(_ROUNDS):
        p = _squash(design @ weights)
        gradient = design.T @ (p - y) + _PENALTY * (weights - (1.0, 0.0))
        curvature = (design * (p * (1 - p))[:, None]).T @ design + _PENALTY * np.eye(2)
        direction: Floats = np.linalg.solve(curvature, gradient).astype(np.float64)
        step = _shorten_step(design, y, weights, direction, loss)
        if step is None:
            break
        weights, loss = step
    if weights[0] < 0.0:
        weights = np.array([0.0, _fit_shift(y)])
    return Calibration(float(weights[0]), float(weights[1]))


def list_reliability(
    probabilities: npt.ArrayLike, labels: Sequence[bool], num_bins: int = 10
) -> list[ReliabilityBin]:
    """Predictions in equal ranges of probability; empty ranges are left out."""
    p, y = _check_pairs(probabilities, labels)
    places = np.minimum((p * num_bins).astype(int), num_bins - 1)
    found = []
    for place in range(num_bins):
        inside = places == place
        if inside.any():
            found.append(
                ReliabilityBin(
                    place / num_bins,
                    (place + 1) / num_bins,
                    int(inside.sum()),
                    float(p[inside].mean()),
                    float(y[inside].mean()),
                )
            )
    return found


def measure_calibration_error(
    probabilities: npt.ArrayLike, labels: Sequence[bool], num_bins: int = 10
) -> float:
    """The expected calibration error: mean distance of predicted and observed shares, by bin sizes."""
    bins = list_reliability(probabilities, labels, num_bins)
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.predicted - each.observed) for each in bins) / total


def measure_brier(probabilities: npt.ArrayLike, labels: Sequence[bool]) -> float:
    """The mean squared difference of probability and truth."""
    p, y = _check_pairs(probabilities, labels)
    return float(np.mean((p - y) ** 2))


def _check_pairs(values: npt.ArrayLike, labels: Sequence[bool]) -> tuple[Floats, Floats]:
    x, y = np.asarray(values, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape or x.size == 0:
        raise InputError(
            f"calibration needs as many values as labels, and one at least; got {x.shape}, {y.shape}"
        )
    if not np.isfinite(x).all():
        raise InputError("calibration: a value is not finite")
    return x, y


def _squash(odds: Floats) -> Floats:
    return 1.0 / (1.0 + np.exp(-np.clip(odds, -_LONGEST, _LONGEST)))


def _compute_loss(design: Floats, y: Floats, weights: Floats) -> float:
    odds = design @ weights
    nll = np.logaddexp(0.0, odds) - y * odds
    return float(nll.sum() + 0.5 * _PENALTY * np.sum((weights - (1.0, 0.0)) ** 2))


def _shorten_step(
    design: Floats, y: Floats, weights: Floats, direction: Floats, loss: float
) -> tuple[Floats, float] | None:
    """The longest of ever shorter steps that lowers the loss; None if there is none."""
    for size in 0.5 ** np.arange(12):
        moved = weights - size * direction
        new_loss = _compute_loss(design, y, moved)
        if new_loss < loss - 1e-12:
            return moved, new_loss
    return None


def _fit_shift(y: Floats) -> float:
    """The log-odds of the share of successes, smoothed."""
    share = (y.sum() + 0.5) / (y.size + 1.0)
    return float(np.log(share / (1.0 - share)))
