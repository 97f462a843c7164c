"""GAE over turns without token rewards: the Turn-PPO baseline, and stage 1 of bi-level GAE.

As `step_gae`, but without k (so the KL belongs in the loss), and the value of a turn may be read at its end.
The source does not say which site it means. `site="end"` (u_t) is the default, as in bi-level GAE;
`site="state"` (V(s_t)) is the other reading.
"""

from __future__ import annotations

from typing import Literal

from stepwell.algos.credit.gae import gae
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_choice, check_fraction
from stepwell.algos.timeline import Timeline


@credit(reads="end", variants={"site": {"state": {"reads": "state"}}})
def turn_gae(
    tl: Timeline, *, gamma: float = 0.99, lam: float = 1.0, site: Literal["end", "state"] = "end"
) -> CreditResult:
    """δ_t = r_t + γ·V_{t+1} − V_t, A_t = δ_t + γλ·A_{t+1}, with V_t = u_t or V(s_t)."""
    check_fraction("gamma", gamma)
    check_fraction("lam", lam)
    check_choice("site", site, ("end", "state"))
    if site == "end":
        values, sites = tl.read_end_values(), tl.end_sites
    else:
        values, sites = tl.read_state_values(), tl.state_sites
    advantages = gae(tl.steps_by_trajectory, tl.rewards, values, tl.read_bootstrap(), gamma, lam)
    return CreditResult.of_steps(tl, advantages, targets=advantages + values, sites=sites)
