"""WebRL's advantage (eq. 15): half a one-step estimate, half a discounted final outcome.

Only the last step's reward is an outcome; V(s_T) is 0 by definition here, so a bootstrap value is
not used. The critic is trained at the last state token of every step towards the final outcome
(eq. 7), with `value_bce`.
"""

from __future__ import annotations

import torch

from stepwell.algos.credit.outcome import discount_outcomes, expand_outcomes
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_fraction
from stepwell.algos.timeline import Timeline


@credit(reads="state", targets="outcomes")
def webrl_advantage(tl: Timeline, *, gamma: float = 0.9, lam: float = 0.5) -> CreditResult:
    """A_t = λ(r_t + γV(s_{t+1}) − V(s_t)) + (1−λ)(γ^{T−1−t}·r_{T−1} − V(s_t))."""
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    values = tl.read_state_values()
    next_values = tl.steps_by_trajectory.shift(values, torch.zeros_like(tl.outcomes))
    one_step = tl.rewards + gamma * next_values - values
    final = discount_outcomes(tl, gamma) - values
    advantages = lam * one_step + (1.0 - lam) * final
    return CreditResult.of_steps(tl, advantages, targets=expand_outcomes(tl), sites=tl.state_sites)
