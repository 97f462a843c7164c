"""GAE over action tokens: one timeline per trajectory, observation tokens skipped.

`reward_at="trajectory_end"` is VAGEN-Base (the whole return on the very last action token),
`"step_end"` the usual multi-turn PPO (each step's reward on its own last action token).

The discount has a clock. `clock="token"` takes γ and λ per token, so a step of L tokens costs γ^L.
`clock="step"` takes them per step: a token is discounted by γ^(1/L) and λ^(1/L), where L is the mean number
of action tokens of a step of this batch. If every step has L tokens, crossing one costs exactly γ, as in
`step_gae`; what is left of the difference between the two is then the unit of credit and not its horizon.
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
    clock: Literal["token", "step"] = "token",
) -> CreditResult:
    """δ_i = reward_i + γ·v_next − v_i, A_i = δ_i + γλ·A_next; critic target A_i + v_i before each token."""
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    check_choice("reward_at", reward_at, ("trajectory_end", "step_end"))
    check_choice("clock", clock, ("token", "step"))
    if clock == "step":
        steps_per_token = tl.num_steps / tl.num_tokens
        gamma, lam = gamma**steps_per_token, lam**steps_per_token
    if reward_at == "trajectory_end":
        rewards = tl.tokens_by_trajectory.at_last(tl.returns)
    else:
        rewards = tl.tokens_by_step.at_last(tl.rewards)
    values = tl.read_token_values()
    advantages = gae(
        tl.tokens_by_trajectory, rewards + tl.read_token_rewards(), values, tl.read_bootstrap(), gamma, lam
    )
    return CreditResult(tl, advantages, value_targets=advantages + values, value_sites=tl.token_sites)
