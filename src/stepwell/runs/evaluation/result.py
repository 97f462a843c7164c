"""What an evaluation found: success with its uncertainty, pass@k, and figures for people.

A success rate comes with Wilson's 95 % interval. Attempts on one task are not independent: they count as the
number of independent attempts with the same uncertainty, at least one per task. pass@k is the unbiased
estimate: the chance that one of k attempts, drawn from those made, succeeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepwell.core import Step, Trajectory
from stepwell.core.statistics import compute_wilson_interval, count_independent
from stepwell.core.text import format_count
from stepwell.rollout.usage import measure_reply_length, measure_tool_use
from stepwell.runs.loop.agent_failures import count_failures


@dataclass(eq=False)
class EvalResult:
    """Episodes on held-out tasks: `samples_per_task` of each, task by task."""

    trajectories: list[Trajectory]
    samples_per_task: int
    temperature: float

    @property
    def outcomes(self) -> np.ndarray:
        """[task, sample] bool."""
        flat = [t.is_success for t in self.trajectories]
        return np.array(flat, dtype=bool).reshape(-1, self.samples_per_task)

    @property
    def num_tasks(self) -> int:
        return len(self.trajectories) // self.samples_per_task

    @property
    def success(self) -> float:
        return float(self.outcomes.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, over tasks."""
        count = count_independent(self.outcomes)
        return compute_wilson_interval(self.success * count, count)

    def pass_at(self, k: int) -> float:
        """Chance that one of k attempts succeeds."""
        n = self.samples_per_task
        wins = self.outcomes.sum(axis=1)
        return float(np.mean([1.0 - math.comb(n - int(c), k) / math.comb(n, k) for c in wins]))

    def values(self) -> dict[str, float]:
        """The figures for `metrics.jsonl`."""
        low, high = self.interval
        steps = [step for t in self.trajectories for step in t.steps]
        powers = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= self.samples_per_task]
        return {
            "success": self.success,
            "low": low,
            "high": high,
            **{f"pass@{k}": self.pass_at(k) for k in powers},
            "reward": float(np.mean([t.total_reward for t in self.trajectories])),
            "turns": len(steps) / len(self.trajectories),
            **format_share(steps),
            **measure_reply_length(self.trajectories),
            **measure_tool_use(self.trajectories),
            **count_failures(self.trajectories),
        }


def format_share(steps: Sequence[Step]) -> dict[str, float]:
    """The share of replies in exactly the required form; empty for a robot, whose steps are not replies."""
    if steps and not any("strict" in step.info for step in steps):
        return {}
    acting = [step for step in steps if not step.is_summary]
    return {"format_share": sum(bool(step.info.get("strict")) for step in acting) / max(len(acting), 1)}


@dataclass(eq=False, repr=False)
class EvalReport:
    """An evaluation for people. `more` are figures besides those of the episodes, by name.

    `checkpoint` says which one of a run was used, and why.
    """

    model: str
    env: str
    result: EvalResult
    seed: int
    more: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    checkpoint: str = ""

    @property
    def success(self) -> float:
        return self.result.success

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, over tasks."""
        return self.result.interval

    def __repr__(self) -> str:
        return self.table()

    def to_json(self) -> str:
        """All figures."""
        content = {
            "model": self.model,
            **({"checkpoint": self.checkpoint} if self.checkpoint else {}),
            "env": self.env,
            "num_tasks": self.result.num_tasks,
            "samples_per_task": self.result.samples_per_task,
            "temperature": self.result.temperature,
            "seed": self.seed,
            **self.result.values(),
            **self.more,
            **({"notes": self.notes} if self.notes else {}),
        }
        return json.dumps(content, indent=2)

    def table(self) -> str:
        """One figure per line."""
        result = self.result
        low, high = result.interval
        decoding = "greedy" if result.temperature == 0 else f"temperature {result.temperature:g}"
        lines = [
            f"model      {self.model}",
            *([f"checkpoint {self.checkpoint}"] if self.checkpoint else []),
            f"env        {self.env}, {format_count(result.num_tasks, 'held-out task')}, "
            f"{format_count(result.samples_per_task, 'attempt')} each, {decoding}",
            f"success    {result.success:.3f}   (95 % interval {low:.3f} to {high:.3f})",
        ]
        lines += [f"{name:<10} {value}" for name, value in self.figures()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def figures(self) -> list[tuple[str, str]]:
        """All but success, as names and values for people."""
        values = {k: v for k, v in self.result.values().items() if k not in ("success", "low", "high")}
        shown = [(name, f"{value:.3f}") for name, value in values.items()]
        for name, value in self.more.items():
            if isinstance(value, int | float) and value:
                shown.append((name, f"{value:,}" if isinstance(value, int) else f"{value:.4f}"))
        return shown
