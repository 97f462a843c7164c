"""Imitation of everything, or of the best trajectories only.

`filtered_bc_loss` keeps trajectories whose return is at or above a percentile of the minibatch's returns.
When all returns are 0 or 1, failures are dropped as well: with few successes the percentile itself is 0 and
would let every failure through. If nothing is left, the loss is 0 and so is `kept_fraction`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.core.errors import InputError


@loss(couples="step", old_samples="allowed")
def sft_loss(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """−policy_logprobs, mean over action tokens."""
    weights = inputs.reduction.token_weights("token_mean")
    loss = -(weights @ inputs.policy_logprobs)
    return loss, {"logprob_mean": -loss.detach()}


@loss(couples="step", old_samples="allowed")
def filtered_bc_loss(inputs: LossInputs, *, percentile: float = 70) -> tuple[Tensor, Metrics]:
    """`sft_loss` on the trajectories that `select_best_trajectories` keeps."""
    whole, timeline = inputs.reduction.minibatch, inputs.timeline
    kept = select_best_trajectories(whole.returns, percentile)
    num_kept = int(whole.tokens_per_trajectory[kept].sum())
    own = timeline.tokens_by_trajectory.expand(kept[whole.trajectories])
    trained = inputs.reduction.zero_untrained(own.to(inputs.policy_logprobs.dtype))
    loss = -(trained @ inputs.policy_logprobs) / max(1, num_kept)
    metrics = {"logprob_mean": -loss.detach(), "kept_fraction": trained.sum() / whole.num_tokens}
    return loss, metrics


@torch.no_grad()
def select_best_trajectories(returns: Tensor, percentile: float) -> Tensor:
    """[trajectory] bool: return at or above the percentile, and successful if returns are binary."""
    if not 0 <= percentile <= 100:
        raise InputError(f"percentile: {percentile} is outside [0, 100]")
    kept = returns >= returns.quantile(percentile / 100)
    binary = bool(((returns == 0) | (returns == 1)).all())
    return kept & (returns == 1) if binary else kept
