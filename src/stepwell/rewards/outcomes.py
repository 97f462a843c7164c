"""Rewards that follow from a judged outcome.

The part `outcome` is 1 on the last step of a success and 0 on every other step. When a step is recorded, the
environment says whether it is one. If somebody judged the trajectory since then, the judgement decides.

Where a judge takes the checker's place (`outcome.judge`), the part `task` follows its outcome in the same
way: the environment's own reward would tell the checker's verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell.core import Trajectory

OUTCOME_PART = "outcome"
JUDGED_PARTS = (OUTCOME_PART, "task")
"""The parts that follow the outcome where a judge takes the checker's place."""


def apply_outcomes(
    trajectories: Iterable[Trajectory], scale: float = 1.0, parts: Sequence[str] = (OUTCOME_PART,)
) -> int:
    """Set these parts of judged trajectories, where they count; returns how many are judged.

    `scale` is `rewards.scale`. Steps whose reward does not have a part stay as they are.
    """
    num_judged = 0
    for trajectory in trajectories:
        if trajectory.outcome is None:
            continue
        num_judged += 1
        for step in trajectory.steps:
            is_paid = trajectory.is_success and step is trajectory.steps[-1]
            if named := [part for part in parts if part in step.reward_parts]:
                paid = dict.fromkeys(named, scale if is_paid else 0.0)
                step.assign_reward({**step.reward_parts, **paid})
    return num_judged
