"""Figures about agents: tool calls and the length of replies.

Everything is read from steps (`info["calls"]`, `info["num_lost"]`), so it works for pools and for runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepwell.core import Step, TokenAction, Trajectory


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
