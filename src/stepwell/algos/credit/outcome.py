"""The final outcome r_{T−1} seen from every step: what WebRL, DigiRL and AWR credit is made of."""

from __future__ import annotations

from torch import Tensor

from stepwell.algos.timeline import Timeline


def outcome_of_steps(tl: Timeline) -> Tensor:
    """[step]: r_{T−1} of the step's trajectory."""
    return tl.trajectories_to_steps(tl.outcomes)


def discounted_outcome(tl: Timeline, gamma: float) -> Tensor:
    """[step]: γ^{T−1−t}·r_{T−1}."""
    return outcome_decay(tl, gamma) * outcome_of_steps(tl)


def outcome_decay(tl: Timeline, decay: float) -> Tensor:
    """[step]: decay^{T−1−t}, which is 1 at the last step even for a decay of 0."""
    return decay ** tl.steps_by_trajectory.left.to(tl.rewards.dtype)
