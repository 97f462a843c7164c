"""DigiRL: a doubly robust advantage that selects steps instead of weighting them.

    A_t = w·r_{T−1} + (1−w)(r_t + V(s_{t+1}) − V(s_t)),   w = λ^{T−1−t},   V(s_T) = boot

`keep` marks the steps with A_t > 1/H of the trajectories whose return beats the instruction
critic's expectation by most; the actor imitates those with plain `sft_loss`. Both critics are
trained with `value_bce` towards the final outcome: the step critic at the last state token, the
instruction critic once per trajectory (`instruction_targets`).

The decay towards the end is λ^{T−1−t} alone: the formula has no further discount. Trajectories that tie
with the last one inside the top share are all kept, so the order of the batch never decides. Without a
`horizon`, H is the longest trajectory of the batch. The trainer gives the environment's turn limit, so that
the filter does not depend on the batch.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from stepwell.algos.credit.outcome import compute_decay, expand_outcomes
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_fraction
from stepwell.algos.timeline import Timeline
from stepwell.core.errors import InputError


@credit(reads="state", targets="outcomes", fills=("horizon",), reads_instructions=True)
def digirl_advantage(
    tl: Timeline, *, lam: float = 0.5, horizon: int | None = None, keep_top: float = 0.1
) -> CreditResult:
    """A_t as above, with `keep` [step] and `instruction_targets` [trajectory]."""
    check_fraction("lam", lam)
    check_fraction("keep_top", keep_top)
    horizon = tl.steps_by_trajectory.longest if horizon is None else horizon
    if horizon < (longest := tl.steps_by_trajectory.longest):
        raise InputError(f"horizon: {horizon}, but a trajectory has {longest} steps; give the step limit")
    values = tl.read_state_values()
    weight = compute_decay(tl, lam)
    one_step = tl.rewards + tl.steps_by_trajectory.shift(values, tl.read_bootstrap()) - values
    advantages = weight * expand_outcomes(tl) + (1.0 - weight) * one_step
    surprise = tl.returns - tl.read_instruction_values()
    keep = (advantages > 1.0 / horizon) & tl.trajectories_to_steps(_select_top_share(surprise, keep_top))
    result = CreditResult.of_steps(tl, advantages, targets=expand_outcomes(tl), sites=tl.state_sites)
    return replace(result, keep=keep, instruction_targets=tl.outcomes)


def _select_top_share(scores: Tensor, share: float) -> Tensor:
    """True for the highest `share` of the scores (at least one of them), ties included."""
    num_kept = max(1, math.ceil(share * scores.shape[0] - 1e-9))
    return scores >= scores.topk(num_kept).values[-1]
