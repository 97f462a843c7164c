"""What the episodes of an update show, as figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.core import Status, Step, Trajectory
from stepwell.pipeline.evaluation import format_share
from stepwell.rollout.usage import tool_use


def num_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Units that were sampled."""
    return sum(step.num_units for t in trajectories for step in t.steps)


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Success, reward and its parts, turns, tokens, the use of tools."""
    steps: list[Step] = [step for t in trajectories for step in t.steps]
    parts: dict[str, float] = {}
    for step in steps:
        for name, value in step.reward_parts.items():
            parts[f"reward/{name}"] = parts.get(f"reward/{name}", 0.0) + value / len(trajectories)
    return {
        "success": float(np.mean([t.status is Status.SUCCESS for t in trajectories])),
        "reward": float(np.mean([t.total_reward for t in trajectories])),
        **parts,
        "turns": len(steps) / len(trajectories),
        **format_share(steps),
        "tokens": float(num_tokens(trajectories)),
        **tool_use(trajectories),
    }
