"""A credit function of your own: each return against the best sibling on the same task.

    stepwell check examples/own_credit.py:best_of_siblings
    stepwell train frozenlake recipe.name=grpo recipe.credit.function=examples/own_credit.py:best_of_siblings

`@credit` says what the trainer must know. Because this function compares siblings, every task is sampled
`train.group_size` times. Without the declaration each task would be sampled once, and every advantage would
be the same: `stepwell check` finds that.
"""

from stepwell.algos import CreditResult, Timeline
from stepwell.algos.declarations import credit


@credit(compares_siblings=True)
def best_of_siblings(timeline: Timeline, *, bonus: float = 0.0) -> CreditResult:
    """A_j = R_j − max of its group, plus `bonus` for the best itself; arguments come from settings."""
    returns, groups = timeline.returns, timeline.read_group_labels()
    is_sibling = groups[:, None] == groups[None, :]
    best = returns.where(is_sibling, returns.min()).amax(dim=1)
    is_best = (returns == best) & (is_sibling.sum(dim=1) > 1)
    return CreditResult.of_trajectories(timeline, returns - best + bonus * is_best)
