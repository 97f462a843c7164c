"""The final outcome r_{T−1} at every step, as WebRL, DigiRL and AWR use it."""

from __future__ import annotations

from torch import Tensor

from stepwell.algos.timeline import Timeline


def expand_outcomes(tl: Timeline) -> Tensor:
    """[step]: r_{T−1} of the step's trajectory."""
    return tl.trajectories_to_steps(tl.outcomes)


def discount_outcomes(tl: Timeline, gamma: float) -> Tensor:
    """[step]: γ^{T−1−t}·r_{T−1}."""
    return compute_decay(tl, gamma) * expand_outcomes(tl)


def compute_decay(tl: Timeline, decay: float) -> Tensor:
    """[step]: decay^{T−1−t}, which is 1 at the last step even for a decay of 0."""
    return decay ** tl.steps_by_trajectory.left.to(tl.rewards.dtype)
