"""From the difference of two logprobs to a probability that can be believed.

A model says log P(YES) − log P(NO). `Calibration` maps it to a probability, 1 / (1 + e^−(slope · x + shift)),
whose two numbers are fitted on validation data (Platt's method; with `shift` = 0 it is a temperature).

    fit_calibration ─► Calibration.convert ─► probabilities ─► reliability table, ECE, Brier
    (calibration_fit)                                          (measures)

Invariant: the slope is never negative, so a more confident YES never becomes a less likely success.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import InputError

Floats = npt.NDArray[np.float64]
LONGEST = 60.0  # log-odds beyond it are as certain as a float can say


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
        return compute_probability(odds)


def compute_probability(odds: Floats) -> Floats:
    """The probability that log-odds stand for."""
    return 1.0 / (1.0 + np.exp(-np.clip(odds, -LONGEST, LONGEST)))
