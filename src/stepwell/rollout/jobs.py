"""Episodes to play, and the result of a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.core import InputError, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play: a task, the group of its siblings, the seed of its sampling.

    `channel` is its place in the pool (`train` or `eval`).
    """

    task: Task
    group: str
    seed: int
    channel: str = "train"


@dataclass(slots=True)
class RolloutResult:
    """One trajectory per job that could be played, in order, and the failed ones."""

    trajectories: list[Trajectory]
    failures: list[Trajectory] = field(default_factory=list)
    num_retries: int = 0
    is_stored: bool = False  # whether they are in the pool already


def require_demonstrations(rolled: RolloutResult, name: str) -> list[Trajectory]:
    """The demonstrations that were played; an environment that failed in all of them is refused."""
    if rolled.failures and not rolled.trajectories:
        raise InputError(
            f"{rolled.failures[0].error}. It failed in every demonstration; "
            f"`stepwell envs check {name}` shows the lines"
        )
    return rolled.trajectories
