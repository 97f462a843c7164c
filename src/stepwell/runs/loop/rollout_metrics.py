"""Figures of the episodes of an update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.config.run import RewardConfig
from stepwell.core import Step, Trajectory
from stepwell.rollout.usage import measure_tool_use
from stepwell.runs.evaluation.result import format_share
from stepwell.runs.loop.agent_failures import count_failures


def count_tokens(trajectories: Sequence[Trajectory]) -> int:
    """The number of sampled units."""
    return sum(step.num_units for t in trajectories for step in t.steps)


def measure_equal_groups(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The share of groups whose siblings all got the same reward; empty without siblings."""
    totals: dict[str, list[float]] = {}
    for t in trajectories:
        totals.setdefault(t.group, []).append(t.total_reward)
    groups = [rewards for rewards in totals.values() if len(rewards) > 1]
    if not groups:
        return {}
    return {"equal_groups": sum(max(g) - min(g) < 1e-9 for g in groups) / len(groups)}


def measure_descriptions(trajectories: Sequence[Trajectory], weights: RewardConfig) -> dict[str, float]:
    """How right descriptions and predictions are on average, from 0 to 1; empty where none are written."""
    found = {}
    for name in ("grounding", "world_modeling"):
        weight = float(getattr(weights, name))
        values = [
            _read_parts(step).get(name) for t in trajectories for step in t.steps if not step.is_summary
        ]
        known = [value for value in values if value is not None]
        if known and weight > 0:
            found[f"{name}_share"] = float(np.mean(known)) / weight
    return found


def _read_parts(step: Step) -> dict[str, float]:
    parts = step.info.get("parts")
    return parts if isinstance(parts, dict) else {}  # type: ignore[return-value]


def measure_rollout(trajectories: Sequence[Trajectory], weights: RewardConfig) -> dict[str, float]:
    """Success, reward and its parts, turns, tokens, the use of tools, how right descriptions are."""
    steps: list[Step] = [step for t in trajectories for step in t.steps]
    parts: dict[str, float] = {}
    for step in steps:
        for name, value in step.reward_parts.items():
            parts[f"reward/{name}"] = parts.get(f"reward/{name}", 0.0) + value / len(trajectories)
    return {
        "success": float(np.mean([t.is_success for t in trajectories])),
        "reward": float(np.mean([t.total_reward for t in trajectories])),
        **parts,
        **measure_equal_groups(trajectories),
        "turns": sum(t.num_turns for t in trajectories) / len(trajectories),
        **format_share(steps),
        "tokens": float(count_tokens(trajectories)),
        **measure_tool_use(trajectories),
        **count_failures(trajectories),
        **measure_descriptions(trajectories, weights),
    }
