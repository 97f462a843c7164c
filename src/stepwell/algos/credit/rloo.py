"""Leave-one-out credit: a trajectory's return against the mean of the *other* siblings."""

from __future__ import annotations

from stepwell.algos.credit.groups import subtract_mean_of_others
from stepwell.algos.credit.result import CreditResult
from stepwell.algos.declarations import credit
from stepwell.algos.timeline import Timeline


@credit(compares_siblings=True)
def rloo(tl: Timeline) -> CreditResult:
    """A_j = R_j − mean of the other returns of its group; a group of one gets 0."""
    return CreditResult.of_trajectories(tl, subtract_mean_of_others(tl.returns, tl.read_group_labels()))
