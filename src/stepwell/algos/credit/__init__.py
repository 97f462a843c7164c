"""Credit: from rewards and values to one advantage per action token, and targets for the critic.

One algorithm per file; each takes a `Timeline` and returns a `CreditResult`. All run under
`no_grad`: advantages are weights of the loss, never a path for gradients.

    needs no critic       grpo  rloo  reinforce_pp  gigpo
    needs V(s_t)          step_gae  turn_gae  webrl_advantage  digirl_advantage  mc_advantage
    needs u_t             turn_gae(site="end")
    needs v_{t,i}         token_gae
    needs v_{t,i}, u_t    bilevel_gae
"""

from collections.abc import Callable

from stepwell.algos.credit.bilevel_gae import bilevel_gae
from stepwell.algos.credit.digirl_advantage import digirl_advantage
from stepwell.algos.credit.gigpo import gigpo
from stepwell.algos.credit.grpo import grpo
from stepwell.algos.credit.mc_advantage import mc_advantage
from stepwell.algos.credit.reinforce_pp import reinforce_pp
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.credit.rloo import rloo
from stepwell.algos.credit.step_gae import step_gae
from stepwell.algos.credit.token_gae import token_gae
from stepwell.algos.credit.turn_gae import turn_gae
from stepwell.algos.credit.webrl_advantage import webrl_advantage
from stepwell.algos.credit.whiten import whiten

CREDIT: dict[str, Callable[..., CreditResult]] = {
    "token_gae": token_gae,
    "step_gae": step_gae,
    "turn_gae": turn_gae,
    "bilevel_gae": bilevel_gae,
    "grpo": grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "gigpo": gigpo,
    "webrl_advantage": webrl_advantage,
    "digirl_advantage": digirl_advantage,
    "mc_advantage": mc_advantage,
}

__all__ = [
    "CREDIT",
    "CreditResult",
    "bilevel_gae",
    "digirl_advantage",
    "gigpo",
    "grpo",
    "mc_advantage",
    "reinforce_pp",
    "rloo",
    "step_gae",
    "token_gae",
    "turn_gae",
    "webrl_advantage",
    "whiten",
]
