"""The recursion that all generalised advantage estimators share, for any segments.

    δ_i = reward_i + γ · v_{i+1} − v_i        A_i = δ_i + γλ · A_{i+1}

Items are action tokens or steps; a segment is a trajectory. Past a segment's last item the value
is `final` [segment] and the advantage is 0.
"""

from __future__ import annotations

from torch import Tensor

from stepwell.algos.segments import Segments


def gae(
    segments: Segments, rewards: Tensor, values: Tensor, final: Tensor, gamma: float, lam: float
) -> Tensor:
    """[item] advantages of items whose segments end in states worth `final`."""
    deltas = rewards + gamma * segments.shift(values, final) - values
    return segments.sum_discounted(deltas, gamma * lam)
