"""GiGPO: group comparison of whole trajectories plus comparison of steps from equal observations.

Steps of one group that share an anchor (the key of the observation they acted on) form a cell;
inside it their discounted step returns are compared as `grpo` compares trajectory returns. A step
whose observation nobody else met, or that has no anchor, is a cell of its own and gets 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepwell.algos.credit.groups import subtract_group_mean
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_fraction, check_not_negative, check_positive
from stepwell.algos.timeline import Timeline


@credit(compares_siblings=True)
def gigpo(
    tl: Timeline, *, gamma: float = 0.95, omega: float = 1.0, normalize_std: bool = True, eps: float = 1e-6
) -> CreditResult:
    """A = A^episode + ω·A^step."""
    check_fraction("gamma", gamma)
    check_not_negative("omega", omega)
    check_positive("eps", eps)
    episode = subtract_group_mean(tl.returns, tl.read_group_labels(), normalize_std=normalize_std, eps=eps)
    step_returns = tl.steps_by_trajectory.sum_discounted(tl.rewards, gamma)
    step = subtract_group_mean(step_returns, _label_cells(tl), normalize_std=normalize_std, eps=eps)
    return CreditResult.of_steps(tl, tl.trajectories_to_steps(episode) + omega * step)


def _label_cells(tl: Timeline) -> Tensor:
    """[step]: one label per (group, anchor)."""
    anchors, anchor_ids = torch.unique(tl.read_anchor_labels(), return_inverse=True)
    _, group_ids = torch.unique(tl.read_group_labels(), return_inverse=True)
    cells: Tensor = tl.trajectories_to_steps(group_ids) * anchors.shape[0] + anchor_ids
    return cells
