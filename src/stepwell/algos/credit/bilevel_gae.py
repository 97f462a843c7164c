"""Bi-level GAE (VAGEN Alg. 2): across turns first, then across the tokens inside each turn.

Stage 1 is `turn_gae` with values read after each action. Stage 2 runs over the tokens of one
action at a time; its rewards are k alone, and the turn's advantage enters at the last token:

    final="td_plus_turn"   A_{t,L-1} = k_{t,L-1} + γ_tok·u_t − v_{t,L-1} + A^turn_t     (Alg. 2)
    final="turn"           A_{t,L-1} = A^turn_t                                     (the text)

Turns are the timeline's steps, so a turn whose reward is 0 keeps its boundary. The critic is
trained before every token, and after every action too (towards A^turn_t + u_t), for otherwise u
would never be trained.
"""

from __future__ import annotations

from typing import Literal

import torch

from stepwell.algos.credit.result import CreditResult
from stepwell.algos.credit.turn_gae import turn_gae
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_choice, check_fraction
from stepwell.algos.timeline import Timeline


@credit(reads="tokens_and_end", reads_token_rewards=True, level="token")
def bilevel_gae(
    tl: Timeline,
    *,
    gamma_turn: float = 0.95,
    lam_turn: float = 1.0,
    gamma_token: float = 1.0,
    lam_token: float = 1.0,
    final: Literal["td_plus_turn", "turn"] = "td_plus_turn",
) -> CreditResult:
    """A_{t,i} = δ_{t,i} + γ_tok·λ_tok·A_{t,i+1} inside each turn; `step_advantages` are A^turn."""
    check_fraction("gamma_turn", gamma_turn)
    check_fraction("lam_turn", lam_turn)
    check_fraction("gamma_token", gamma_token)
    check_fraction("lam_token", lam_token)
    check_choice("final", final, ("td_plus_turn", "turn"))
    values, ends = tl.read_token_values(), tl.read_end_values()
    turn = turn_gae(tl, gamma=gamma_turn, lam=lam_turn, site="end").step_advantages
    assert turn is not None
    tokens = tl.tokens_by_step
    deltas = tl.read_token_rewards() + gamma_token * tokens.shift(values, ends) - values
    if final == "td_plus_turn":
        deltas = deltas + tokens.at_last(turn)
    else:
        deltas = deltas.index_copy(0, tokens.last, turn)
    advantages = tokens.sum_discounted(deltas, gamma_token * lam_token)
    return CreditResult(
        tl,
        advantages,
        step_advantages=turn,
        value_targets=torch.cat([advantages + values, turn + ends]),
        value_sites=torch.cat([tl.token_sites, tl.end_sites]),
    )
