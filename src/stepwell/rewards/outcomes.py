"""Rewards that follow from a judged outcome.

The part `outcome` is 1 on the last step of a success and 0 on every other step. When a step is recorded, the
environment says whether it is one. If somebody judged the trajectory since then, the judgement decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepwell.core import Trajectory

OUTCOME_PART = "outcome"


def apply_outcomes(trajectories: Iterable[Trajectory], scale: float = 1.0) -> int:
    """Set the part `outcome` of judged trajectories, where it counts; returns how many are judged.

    `scale` is `rewards.scale`. Steps whose reward does not have the part stay as they are.
    """
    num_judged = 0
    for trajectory in trajectories:
        if trajectory.outcome is None:
            continue
        num_judged += 1
        for step in trajectory.steps:
            if OUTCOME_PART in step.reward_parts:
                is_paid = trajectory.is_success and step is trajectory.steps[-1]
                step.assign_reward({**step.reward_parts, OUTCOME_PART: scale if is_paid else 0.0})
    return num_judged
