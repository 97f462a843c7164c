"""WebRL's KL-constrained regression (eq. 5): the log-ratio to the reference is fitted to A / β.

The optimum of the KL-regularised objective satisfies β·log(π/π_ref) = A. The loss is the squared violation
of that identity per step. It therefore works on data of any policy, needs no ratio to it, and contains its
own KL constraint. Steps with a negative advantage stay in, because wrong actions must become less likely.

A rare action can have a log-ratio of ten or more, for which the square asks for a change that outweighs the
rest of a batch. `max_residual` makes the loss linear beyond a violation of that size (Huber's loss): the same
optimum, and no step pulls harder than an advantage of that size would.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.algos.scalar_checks import check_positive


@loss(needs=("advantages", "reference"), couples="step", old_samples="allowed", aggregate="step_mean")
def webrl_loss(
    inputs: LossInputs,
    *,
    beta: float = 1.0,
    length_normalize: bool = False,
    max_residual: float | None = None,
) -> tuple[Tensor, Metrics]:
    """Mean over steps of (β(Σ_i policy_logprobs − Σ_i ref_logprobs) − A_t)².

    `length_normalize` divides the difference by L_t. A_t is the mean of the step's token
    advantages, which are equal for step credit. Beyond `max_residual` the loss grows linearly; None: the
    square throughout, as in eq. 5.
    """
    check_positive("beta", beta)
    if max_residual is not None:
        check_positive("max_residual", max_residual)
    reduction = inputs.reduction
    difference = inputs.policy_logprobs - inputs.read_reference()
    log_ratio = reduction.step_mean(difference) if length_normalize else reduction.step_sum(difference)
    advantages = reduction.step_mean(inputs.read_advantages())
    weights = reduction.step_weights()
    residual = beta * log_ratio - advantages
    squares = residual.square()
    if max_residual is not None:
        size = residual.abs()
        squares = torch.where(size > max_residual, max_residual * (2 * size - max_residual), squares)
    loss = weights @ squares
    with torch.no_grad():
        metrics = {
            "log_ratio_mean": weights @ log_ratio,
            "advantage_mean": weights @ advantages,
            "negative_fraction": weights @ (advantages < 0).to(weights),
        }
    return loss, metrics
