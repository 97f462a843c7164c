"""Fit a calibration to probabilities whose truth is known.

Invariants
* The fit is penalised a little towards slope 1, shift 0, so that it exists for separable and one-sided data.
* On its own data the fit is never worse than the uncalibrated probability, measured as penalised log loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepwell.rewards.outcome_model.calibration import LONGEST, Calibration, Floats, compute_probability
from stepwell.rewards.outcome_model.measures import check_pairs

_PENALTY = 0.02
_ROUNDS = 100


def fit_calibration(differences: npt.ArrayLike, labels: Sequence[bool]) -> Calibration:
    """Fit slope and shift by damped Newton steps on the penalised log loss."""
    x, y = check_pairs(differences, labels)
    weights = np.array([1.0, 0.0])
    design = np.stack([np.clip(x, -LONGEST, LONGEST), np.ones_like(x)], axis=1)
    loss = _compute_loss(design, y, weights)
    for _ in range(_ROUNDS):
        p = compute_probability(design @ weights)
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
