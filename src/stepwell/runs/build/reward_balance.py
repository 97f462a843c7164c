"""Whether reward parts that are paid in every turn can outweigh the task.

Format, grounding and world modelling are paid per turn, the task mostly once. An episode that solves its
task in the first turn gets them once; one that only talks gets them in every turn. Solving early must not
cost reward: the remaining turns may not pay more than a success.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.config.run import RewardConfig
from stepwell.core import Trajectory

PER_TURN = ("format", "grounding", "world_modeling")


def average_success_pay(demonstrations: Sequence[Trajectory], scale: float) -> float | None:
    """The average task reward of successes, before scaling; None if it is not positive."""
    won = [t for t in demonstrations if t.is_success]
    totals = [sum(step.reward_parts.get("task", 0.0) for step in t.steps) / scale for t in won]
    paid = sum(totals) / len(totals) if totals else 0.0
    return paid if paid > 0 else None


def describe_imbalance(
    demonstrations: Sequence[Trajectory], rewards: RewardConfig, reward_parts: Sequence[str], max_turns: int
) -> str | None:
    """A warning with figures if well-formed talk pays more than solving early; None if not."""
    paid = average_success_pay(demonstrations, rewards.scale)
    counted = [part for part in PER_TURN if part in reward_parts]
    per_turn = sum(float(getattr(rewards, part)) for part in counted)
    left = per_turn * (max_turns - 1)
    if paid is None or "task" not in reward_parts or left <= paid:
        return None
    names = ", ".join(f"rewards.{part}" for part in counted)
    fit = paid / (10 * max_turns * len(counted))
    return (
        f"form can outweigh the task: a success pays {paid:.3g}, {max_turns - 1} further turns in the "
        f"required form pay {left:.3g} ({names}), so solving early costs reward; set each to about {fit:.2g}"
    )
