"""When training diverges: gradients that are not sound, and the error that says what to change."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from stepwell.core import DivergenceError

ADVICE = (
    "Lower train.optimizer.learning_rate, raise train.warmup_updates, scale rewards down (rewards.scale), "
    "or resume from an earlier checkpoint"
)


def judge_gradient(
    update: int, norms: Mapping[str, Tensor], limit: float, metrics: Mapping[str, Tensor]
) -> DivergenceError | None:
    """The error of a step whose gradient is not finite or above the limit; None: it may be taken."""
    for name, value in norms.items():
        norm = float(value)
        if math.isfinite(norm) and norm <= limit:
            continue
        figures = ", ".join(f"{name} {float(value):.4g}" for name, value in metrics.items())
        return make_divergence_error(
            update,
            f"the gradient's norm ({name}) is {norm:.4g} (limit train.max_grad_norm = {limit:g}); {figures}. "
            "This step was not taken",
        )
    return None


def make_divergence_error(update: int, what: str) -> DivergenceError:
    """The error of an update, with what to change."""
    return DivergenceError(f"update {update}: {what}. {ADVICE}")
