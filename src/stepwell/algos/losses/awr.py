"""Advantage-weighted regression: imitate every step, the better ones exponentially more."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.algos.scalar_checks import check_positive


@loss(needs=("advantages",), couples="step", old_samples="allowed", aggregate="step_mean")
def awr_loss(inputs: LossInputs, *, beta: float = 1.0, max_weight: float = 20.0) -> tuple[Tensor, Metrics]:
    """−min(exp(A_t/β), max_weight)·Σ_i policy_logprobs, mean over steps."""
    check_positive("beta", beta)
    check_positive("max_weight", max_weight)
    reduction = inputs.reduction
    uncut = (
        reduction.step_mean(inputs.read_advantages()) / beta
    ).exp()  # may be inf; the cut makes it finite
    step_weight = uncut.clamp(max=max_weight)
    weights = reduction.step_weights()
    loss = -(weights @ (step_weight * reduction.step_sum(inputs.policy_logprobs)))
    with torch.no_grad():
        metrics = {
            "weight_mean": weights @ step_weight,
            "weight_capped_fraction": weights @ (uncut > max_weight).to(weights),
        }
    return loss, metrics
