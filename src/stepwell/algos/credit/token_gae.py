"""GAE over action tokens: one timeline per trajectory, observation tokens skipped.

`reward_at="trajectory_end"` is VAGEN-Base (the whole return on the very last action token),
`"step_end"` the usual multi-turn PPO (each step's reward on its own last action token).
"""

from __future__ import annotations

from typing import Literal

from stepwell.algos.credit.gae import gae
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_choice, check_fraction
from stepwell.algos.timeline import Timeline


@credit(reads="tokens", reads_token_rewards=True, level="token")
def token_gae(
    tl: Timeline,
    *,
    gamma: float = 0.99,
    lam: float = 1.0,
    reward_at: Literal["trajectory_end", "step_end"] = "trajectory_end",
) -> CreditResult:
    """δ_i = reward_i + γ·v_next − v_i, A_i = δ_i + γλ·A_next; critic target A_i + v_i before each token."""
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    check_choice("reward_at", reward_at, ("trajectory_end", "step_end"))
    if reward_at == "trajectory_end":
        rewards = tl.tokens_by_trajectory.at_last(tl.returns)
    else:
        rewards = tl.tokens_by_step.at_last(tl.rewards)
    values = tl.read_token_values()
    advantages = gae(
        tl.tokens_by_trajectory, rewards + tl.read_token_rewards(), values, tl.read_bootstrap(), gamma, lam
    )
    return CreditResult(tl, advantages, value_targets=advantages + values, value_sites=tl.token_sites)
