"""`eval_episodes.jsonl`: the episodes of a run's latest evaluation, one line each.

    {"task": "8c1f…", "success": true, "turns": 5, "golden": 4, "tokens": 61,
     "calls": {"search": 2, "expand": 3}, "lost_calls": 0, "score": 1.0, "measures": {"f1": 0.8}}

Curves show how good an agent is; this file shows how it worked: turns, turns of the shortest plan (`golden`,
None if unknown), tokens written in all turns, tools called, the unscaled reward of the task alone (`score`),
and what else the environment measures at the end.

Every evaluation replaces the whole file, so a finished run has that of its last evaluation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepwell.core import TokenAction, Trajectory
from stepwell.core.disk import atomic_write
from stepwell.core.errors import EncodingError

FILE_NAME = "eval_episodes.jsonl"


@dataclass(frozen=True, slots=True)
class EvalEpisode:
    """One episode in figures."""

    task: str
    success: bool
    turns: int
    golden: int | None = None
    tokens: int | None = None
    calls: dict[str, int] | None = None
    lost_calls: int = 0
    score: float = 0.0
    measures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, trajectory: Trajectory) -> EvalEpisode:
        """The figures of a recorded episode."""
        infos: list[Any] = [step.info for step in trajectory.steps]
        actions = [step.action for step in trajectory.steps]
        sizes = [int(action.action_ids.size) for action in actions if isinstance(action, TokenAction)]
        called = [info["calls"] for info in infos if "calls" in info]
        counts = Counter(name for names in called for name in names)
        golden: Any = trajectory.info.get("golden")
        last: Any = infos[-1] if infos else {}
        return cls(
            task=trajectory.task.id,
            success=trajectory.is_success,
            turns=trajectory.num_turns,
            golden=golden,
            tokens=sum(sizes) if len(sizes) == len(actions) else None,
            calls=dict(sorted(counts.items())) if called else None,
            lost_calls=sum(info.get("num_lost", 0) for info in infos),
            score=float(sum(info.get("parts", {}).get("task", 0.0) for info in infos)),
            measures=dict(last.get("measures", {})),
        )


def write_episodes(folder: Path, trajectories: Sequence[Trajectory]) -> Path:
    """Write the file of a run folder, whole or not at all."""
    path = folder / FILE_NAME
    lines = [json.dumps(asdict(EvalEpisode.of(trajectory))) for trajectory in trajectories]
    atomic_write(path, "".join(f"{line}\n" for line in lines))
    return path


def read_episodes(folder: Path) -> list[EvalEpisode]:
    """The episodes of a run folder; none if it has no such file (an older run, no evaluation)."""
    path = folder / FILE_NAME
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [EvalEpisode(**json.loads(line)) for line in lines if line]
    except (ValueError, TypeError) as error:
        raise EncodingError(f"{path} is damaged ({error}); delete it, or evaluate the run again") from error
