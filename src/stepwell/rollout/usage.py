"""Figures about agents: tool calls, length of replies, turns beyond the shortest plan.

Everything is read from trajectories (`step.info["calls"]`, `info["num_lost"]`,
`trajectory.info["golden"]`), so it works for a pool as well as for a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepwell.core import Status, Step, TokenAction, Trajectory


@dataclass(frozen=True, slots=True)
class GoldenRow:
    """Tasks whose shortest plan has `golden` turns: attempts, success rate, extra turns of successes."""

    golden: int
    num_trajectories: int
    success: float
    extra_turns: float | None


def measure_tool_use(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Calls per episode, by tool and in total, and calls that were not made; empty without tools.

    A call counts if it was made, or if only the end of the episode prevented it.
    """
    infos: list[Any] = [step.info for t in trajectories for step in t.steps if "calls" in step.info]
    if not infos:
        return {}
    made = Counter(name for info in infos for name in info["calls"])
    num = len(trajectories)
    return {
        "calls": made.total() / num,
        **{f"calls/{name}": count / num for name, count in sorted(made.items())},
        "lost_calls": sum(info["num_lost"] for info in infos) / num,
    }


def measure_reply_length(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Mean number of tokens of a reply; empty for robots, which do not reply."""
    sizes = [_count_tokens(step) for t in trajectories for step in t.steps]
    known = [size for size in sizes if size]
    return {"response_tokens": float(np.mean(known))} if known else {}


def _count_tokens(step: Step) -> int:
    """Tokens of a reply: counted, or as the API of an outside model reports them; 0 if unknown."""
    if isinstance(step.action, TokenAction):
        return int(step.action.action_ids.size)
    usage: Any = step.info.get("usage")
    return int(usage["completion_tokens"]) if isinstance(usage, dict) else 0


def group_by_golden(trajectories: Sequence[Trajectory]) -> list[GoldenRow]:
    """Success and extra turns by the length of the shortest plan, if it is known, shortest first.

    Extra turns are those of successes: a failed episode says nothing about its length.
    """
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        golden = trajectory.info.get("golden")
        if isinstance(golden, int) and trajectory.status is not Status.INFRA_ERROR:
            groups.setdefault(golden, []).append(trajectory)
    return [_make_row(golden, groups[golden]) for golden in sorted(groups)]


def _make_row(golden: int, trajectories: Sequence[Trajectory]) -> GoldenRow:
    extra = [t.num_turns - golden for t in trajectories if t.is_success]
    mean = float(np.mean(extra)) if extra else None
    return GoldenRow(golden, len(trajectories), len(extra) / len(trajectories), mean)
