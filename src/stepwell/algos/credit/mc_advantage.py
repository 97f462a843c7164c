"""The discounted final outcome against the critic: the credit of the AWR recipe.

The critic is trained with `value_bce` towards the (undiscounted) final outcome.
"""

from __future__ import annotations

from stepwell.algos.credit.outcome import discount_outcomes, expand_outcomes
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_fraction
from stepwell.algos.timeline import Timeline


@credit(reads="state", targets="outcomes")
def mc_advantage(tl: Timeline, *, gamma: float = 0.9) -> CreditResult:
    """A_t = γ^{T−1−t}·r_{T−1} − V(s_t)."""
    check_fraction("gamma", gamma)
    advantages = discount_outcomes(tl, gamma) - tl.read_state_values()
    return CreditResult.of_steps(tl, advantages, targets=expand_outcomes(tl), sites=tl.state_sites)
