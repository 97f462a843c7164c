"""How agents went about it: tools called, length of replies, turns beyond the shortest plan.

Everything is read from recorded trajectories (`step.info["calls"]`, `info["num_lost"]`,
`trajectory.info["golden"]`), so it can be had from a pool as well as from a run.
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
    """Tasks whose shortest plan has `golden` turns: attempts, share solved, turns of those beyond it."""

    golden: int
    num_trajectories: int
    success: float
    extra_turns: float | None


def tool_use(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Calls per episode, by tool and in all, and parts of replies that were not done; empty without tools.

    A call counts where it was made, or would have been had the one before it not ended the episode.
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


def reply_length(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Mean number of tokens of a reply; empty where there are no replies (a robot's steps are none)."""
    sizes = [_num_tokens(step) for t in trajectories for step in t.steps]
    known = [size for size in sizes if size]
    return {"response_tokens": float(np.mean(known))} if known else {}


def _num_tokens(step: Step) -> int:
    """Tokens of a reply: counted, or as an outside model's API told them; 0 where it is not known."""
    if isinstance(step.action, TokenAction):
        return int(step.action.action_ids.size)
    usage: Any = step.info.get("usage")
    return int(usage["completion_tokens"]) if isinstance(usage, dict) else 0


def by_golden(trajectories: Sequence[Trajectory]) -> list[GoldenRow]:
    """Success and extra turns by the length of the shortest plan, where it is known, shortest first.

    Extra turns are those of solved episodes: an episode that fails says nothing about its length.
    """
    groups: dict[int, list[Trajectory]] = {}
    for trajectory in trajectories:
        golden = trajectory.info.get("golden")
        if isinstance(golden, int) and trajectory.status is not Status.INFRA_ERROR:
            groups.setdefault(golden, []).append(trajectory)
    return [_row(golden, groups[golden]) for golden in sorted(groups)]


def _row(golden: int, trajectories: Sequence[Trajectory]) -> GoldenRow:
    extra = [len(t.steps) - golden for t in trajectories if t.status is Status.SUCCESS]
    mean = float(np.mean(extra)) if extra else None
    return GoldenRow(golden, len(trajectories), len(extra) / len(trajectories), mean)
