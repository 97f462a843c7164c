"""Where credit is large and where the critic knows something: figures of one update, for studies.

    advantage/step_03    mean |A| in the third step, before whitening; each step counts once
    explained/step_03    share of the variance of returns that the critic explains at the sites of third steps
    explained/state      ... before the first action token: what StepPO's critic and PPO's have in common
    explained/inside     ... before later action tokens
    explained/end        ... after the last action token

Invariants
* A figure of fewer than `LEAST` steps is left out: it would be noise. So are steps after the `MOST`-th.
* Where targets do not vary there is nothing to explain, and the share is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos import Timeline
from stepwell.algos.credit.result import CreditResult

MOST, LEAST = 16, 8


def measure_credit(timeline: Timeline, credit: CreditResult, values: Tensor | None) -> dict[str, Tensor]:
    """Figures of a whole batch; `values` [site] is what the critic said where it got targets."""
    sizes = timeline.tokens_by_step.mean(credit.advantages.abs())
    place = timeline.steps_by_trajectory.position
    found = {f"advantage/{name}": sizes[mine].mean() for name, mine in _select_steps(place)}
    if values is None or credit.value_sites is None or credit.value_targets is None:
        return found
    step, position = credit.value_sites[:, 0], credit.value_sites[:, 1]
    kinds = {
        "state": position == 0,
        "inside": (position > 0) & (position < timeline.tokens_per_step[step]),
        "end": position == timeline.tokens_per_step[step],
    }
    chosen = [(name, mine) for name, mine in kinds.items() if int(mine.sum()) >= LEAST]
    chosen += [(name, mine[step]) for name, mine in _select_steps(place)]
    for name, mine in chosen:
        if bool(mine.any()):
            found[f"explained/{name}"] = compute_explained_variance(values[mine], credit.value_targets[mine])
    return found


def compute_explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """The share of the targets' variance that the critic explains; 0 if they do not vary."""
    spread = targets.var(unbiased=False)
    left = (targets - values).var(unbiased=False)
    return torch.where(spread > 1e-12, 1.0 - left / spread.clamp(min=1e-12), torch.zeros_like(spread))


def _select_steps(place: Tensor) -> list[tuple[str, Tensor]]:
    """A name and a mask [step] for the first, second, … steps of trajectories, where there are enough."""
    masks = [(f"step_{number + 1:02d}", place == number) for number in range(MOST)]
    return [(name, mask) for name, mask in masks if int(mask.sum()) >= LEAST]
