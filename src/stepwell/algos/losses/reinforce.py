"""REINFORCE: the log-probability of each action token, weighted by its advantage.

Asynchronous data: with `proximal_logprobs` given, each term is weighted by the detached proximal / behavior
ratio of its token, cut at `correction_cap`, as in `ppo_loss`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.algos.losses.ppo import clamp_exp
from stepwell.algos.scalar_checks import check_positive


@loss(needs=("advantages",), couples="step", old_samples="corrected")
def reinforce_loss(inputs: LossInputs, *, correction_cap: float = 2.0) -> tuple[Tensor, Metrics]:
    """−A·policy_logprobs, mean over action tokens."""
    check_positive("correction_cap", correction_cap)
    advantages = inputs.read_advantages()
    weights = inputs.reduction.token_weights("token_mean")
    terms = advantages * inputs.policy_logprobs
    metrics: Metrics = {}
    if inputs.proximal_logprobs is not None:
        correction = clamp_exp(inputs.read_proximal() - inputs.read_behavior()).detach()
        terms = terms * correction.clamp(max=correction_cap)
        metrics["correction_mean"] = weights @ correction
        metrics["correction_capped_fraction"] = weights @ (correction > correction_cap).to(weights)
    loss = -(weights @ terms)
    with torch.no_grad():
        metrics["advantage_mean"] = weights @ advantages
        metrics["logprob_mean"] = weights @ inputs.policy_logprobs
    return loss, metrics
