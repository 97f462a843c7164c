"""The entropy bonus, as a loss to add: `loss + entropy_coef * entropy_bonus(...)[0]`."""

from __future__ import annotations

from torch import Tensor

from stepwell.algos.checks import check_floats
from stepwell.algos.losses.inputs import Metrics
from stepwell.algos.losses.reduction import Aggregate, MinibatchCounts, Reduction
from stepwell.algos.timeline import Timeline


def entropy_bonus(
    entropies: Tensor,
    timeline: Timeline,
    *,
    aggregate: Aggregate = "token_mean",
    loss_mask: Tensor | None = None,
    minibatch: MinibatchCounts | None = None,
) -> tuple[Tensor, Metrics]:
    """Minus the mean entropy of the policy at the action tokens: lower is more exploratory."""
    check_floats("entropies", entropies, timeline.num_tokens, "action token", timeline.rewards.device)
    reduction = Reduction(timeline, entropies.dtype, loss_mask, minibatch)
    mean = reduction.token_weights(aggregate) @ entropies
    return -mean, {"entropy": mean.detach()}
