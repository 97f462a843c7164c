"""GAE over steps (StepPO eq. 6): the step is the decision, so credit is computed per step.

The value of a step is V(s_t), read at the last state token before the action begins. The critic
is trained there and nowhere else.
"""

from __future__ import annotations

from stepwell.algos.credit.gae import gae
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_fraction
from stepwell.algos.timeline import Timeline


@credit(reads="state", reads_token_rewards=True)
def step_gae(tl: Timeline, *, gamma: float = 0.99, lam: float = 1.0) -> CreditResult:
    """δ_t = r_t + Σ_i k_{t,i} + γ·V(s_{t+1}) − V(s_t), A_t = δ_t + γλ·A_{t+1}, V(s_T) = boot."""
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    rewards = tl.rewards + tl.tokens_by_step.sum(tl.read_token_rewards())
    values = tl.read_state_values()
    advantages = gae(tl.steps_by_trajectory, rewards, values, tl.read_bootstrap(), gamma, lam)
    return CreditResult.of_steps(tl, advantages, targets=advantages + values, sites=tl.state_sites)
