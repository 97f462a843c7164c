"""What is to be played, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.core import Task, Trajectory


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play: a task, the group it is compared in, the seed of its sampling.

    `channel` says where in the pool it belongs (`train` or `eval`).
    """

    task: Task
    group: str
    seed: int
    channel: str = "train"


@dataclass(slots=True)
class Rolled:
    """What came of a rollout: one trajectory per job that could be played, in order, and the rest."""

    trajectories: list[Trajectory]
    failures: list[Trajectory] = field(default_factory=list)
    num_retries: int = 0
    is_stored: bool = False  # whether whoever played has put them into the pool already
