"""GAE over turns without token rewards: the Turn-PPO baseline, and stage 1 of bi-level GAE.

As `step_gae`, but without k (so the KL belongs in the loss), and the value of a turn may be read at its end.
`site="state"` (V(s_t), the default) is a baseline: it does not know the action. `site="end"` (u_t) already
knows it, so with a perfect critic a right and a wrong action both get 0. That is a stage of bi-level GAE,
which then compares u_t with the values before it. Alone it is the other reading of the source, which does not
say where it reads the value.
"""

from __future__ import annotations

from typing import Literal

from stepwell.algos.credit.gae import gae
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_choice, check_fraction
from stepwell.algos.timeline import Timeline


@credit(reads="state", variants={"site": {"end": {"reads": "end"}}})
def turn_gae(
    tl: Timeline, *, gamma: float = 0.99, lam: float = 1.0, site: Literal["state", "end"] = "state"
) -> CreditResult:
    """δ_t = r_t + γ·V_{t+1} − V_t, A_t = δ_t + γλ·A_{t+1}, with V_t = V(s_t) or u_t."""
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    check_choice("site", site, ("state", "end"))
    if site == "end":
        values, sites = tl.read_end_values(), tl.end_sites
    else:
        values, sites = tl.read_state_values(), tl.state_sites
    advantages = gae(tl.steps_by_trajectory, tl.rewards, values, tl.read_bootstrap(), gamma, lam)
    return CreditResult.of_steps(tl, advantages, targets=advantages + values, sites=sites)
