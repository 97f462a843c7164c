"""Direct preference optimisation over pairs of steps that acted on the same state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.algos.scalar_checks import check_positive
from stepwell.core.errors import InputError


@loss(needs=("reference", "pairs"), old_samples="allowed")
def dpo_loss(inputs: LossInputs, *, beta: float = 0.1) -> tuple[Tensor, Metrics]:
    """−log σ(β(x_chosen − x_rejected)), mean over pairs; x_t = Σ_i policy_logprobs − Σ_i ref_logprobs.

    `inputs.pairs` [pair, 2] names the (chosen, rejected) steps, as flat step indices. When the
    timeline has anchors, both steps of a pair must share one.
    """
    check_positive("beta", beta)
    if inputs.pairs is None:
        raise InputError(
            "pairs: missing, and this loss needs it; give [pair, 2] of (chosen, rejected) flat steps"
        )
    num_pairs = len(inputs.pairs) if inputs.minibatch is None else inputs.minibatch.num_pairs
    if num_pairs == 0:
        raise InputError("pairs: empty; skip the update instead")
    log_ratios = inputs.reduction.step_sum(inputs.policy_logprobs - inputs.read_reference())
    margins = beta * (log_ratios[inputs.pairs[:, 0]] - log_ratios[inputs.pairs[:, 1]])
    loss = -F.logsigmoid(margins).sum() / num_pairs
    with torch.no_grad():
        metrics = {
            "margin_mean": margins.sum() / num_pairs,
            "accuracy": (margins > 0).to(margins.dtype).sum() / num_pairs,
        }
    return loss, metrics
