"""REINFORCE: the log-probability of each action token, weighted by its advantage."""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics


@loss(needs=("advantages",), couples="step")
def reinforce_loss(inputs: LossInputs) -> tuple[Tensor, Metrics]:
    """−A·policy_logprobs, mean over action tokens."""
    advantages = inputs.read_advantages()
    weights = inputs.reduction.token_weights("token_mean")
    loss = -(weights @ (advantages * inputs.policy_logprobs))
    with torch.no_grad():
        metrics = {
            "advantage_mean": weights @ advantages,
            "logprob_mean": weights @ inputs.policy_logprobs,
        }
    return loss, metrics
