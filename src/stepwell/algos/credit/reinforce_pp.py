"""REINFORCE++: returns whitened over all action tokens of the batch, no critic.

The only built-in function that whitens by itself: whitening is part of its definition. `baseline="group"`
first subtracts the siblings' mean return; that variant uses neither k nor γ.
"""

from __future__ import annotations

from typing import Literal

from stepwell.algos.credit.groups import subtract_group_mean
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.credit.whiten import whiten
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_choice, check_fraction
from stepwell.algos.timeline import Timeline


@credit(
    reads_token_rewards=True,
    level="token",
    whitens=True,
    variants={"baseline": {"group": {"compares_siblings": True, "reads_token_rewards": False}}},
)
def reinforce_pp(
    tl: Timeline, *, gamma: float = 0.99, baseline: Literal["group"] | None = None
) -> CreditResult:
    """Whitened discounted return-to-go over action tokens, or whitened R_j − mean_group."""
    check_fraction("gamma", gamma)
    check_choice("baseline", baseline, (None, "group"))
    if baseline == "group":
        relative = subtract_group_mean(tl.returns, tl.read_group_labels())
        advantages = whiten(tl.tokens_by_trajectory.expand(relative))
        return CreditResult(tl, advantages, step_advantages=advantages[tl.tokens_by_step.first])
    rewards = tl.tokens_by_step.at_last(tl.rewards) + tl.read_token_rewards()
    return CreditResult(tl, whiten(tl.tokens_by_trajectory.sum_discounted(rewards, gamma)))
