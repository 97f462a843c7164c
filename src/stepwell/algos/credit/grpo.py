"""Group-relative credit: a trajectory's return against its siblings on the same task."""

from __future__ import annotations

from stepwell.algos.credit.groups import subtract_group_mean
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.scalar_checks import check_positive
from stepwell.algos.timeline import Timeline


@credit(compares_siblings=True)
def grpo(tl: Timeline, *, normalize_std: bool = True, eps: float = 1e-6) -> CreditResult:
    """A = (R − mean_group) / (std_group + eps), sample std; without `normalize_std` the difference."""
    check_positive("eps", eps)
    advantages = subtract_group_mean(tl.returns, tl.read_group_labels(), normalize_std=normalize_std, eps=eps)
    return CreditResult.of_trajectories(tl, advantages)
