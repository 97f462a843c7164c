"""The trajectory: the steps of one agent on one task, and how it ended.

`Status` separates what the agent did from what the system did. Only a trajectory that
`is_trainable` may reach a gradient: an infrastructure failure is counted and shown, and
its place in the group is filled again. Whether the task is solved is the status, unless somebody judged
the trajectory: then it is the newest `Outcome`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from stepwell.core.errors import InputError
from stepwell.core.ids import make_id
from stepwell.core.outcome import Outcome
from stepwell.core.step import JSON, State, Step
from stepwell.core.task import Task


class Status(StrEnum):
    """How a trajectory ended.

    Reaching the environment's own turn limit is a `FAILURE` (the episode is over).
    Reaching Stepwell's time or token budget is `TRUNCATED` (the episode would go on).
    """

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"
    AGENT_ERROR = "agent_error"
    INFRA_ERROR = "infra_error"

    @property
    def is_terminated(self) -> bool:
        """Whether the episode is over after the last step, so that its bootstrap value is 0."""
        return self in (Status.SUCCESS, Status.FAILURE, Status.AGENT_ERROR)


@dataclass(slots=True)
class Trajectory:
    """The steps of one agent on one task, and how the episode ended.

    `group` joins siblings: trajectories of the same task that are compared with each
    other. `final_state` is the state after the last step; a truncated trajectory needs it
    for its bootstrap value. `timings` are seconds by name (`env_s`, `engine_s`, ...). `outcome` is the
    newest judgement, if there is one.
    """

    task: Task
    steps: list[Step]
    status: Status
    group: str = ""
    final_state: State | None = None
    error: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    info: dict[str, JSON] = field(default_factory=dict)
    id: str = field(default_factory=lambda: make_id("traj"))
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        if self.status in (Status.AGENT_ERROR, Status.INFRA_ERROR) and not self.error:
            raise InputError(
                f"a trajectory with status {self.status.value} must say what went wrong in `error`"
            )
        check_timings(self.timings)

    @property
    def is_trainable(self) -> bool:
        """Whether it may enter a gradient: the system did not fail, and there are steps."""
        return self.status is not Status.INFRA_ERROR and bool(self.steps)

    @property
    def num_turns(self) -> int:
        """The number of steps that the environment saw; summaries are not among them."""
        return sum(not step.is_summary for step in self.steps)

    @property
    def is_success(self) -> bool:
        """Whether the task counts as solved: as judged, else as the status says."""
        if self.outcome is None or self.status is Status.INFRA_ERROR:
            return self.status is Status.SUCCESS
        return self.outcome.is_success

    @property
    def total_reward(self) -> float:
        """The sum of step rewards; an error while one is unassigned."""
        total = 0.0
        for index, step in enumerate(self.steps):
            if step.reward is None:
                raise InputError(f"trajectory {self.id}: the reward of step {index} is not assigned yet")
            total += step.reward
        return total


def check_timings(timings: Mapping[str, float]) -> None:
    """Refuse what no clock gives."""
    for name, seconds in timings.items():
        if not np.isfinite(seconds) or seconds < 0:
            raise InputError(f"timings[{name!r}] is {seconds}; give seconds >= 0")


def select_trainable(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], dict[str, int]]:
    """The trajectories that may enter a gradient, and the count of every status, infra errors included."""
    kept: list[Trajectory] = []
    counts = {status.value: 0 for status in Status}
    for trajectory in trajectories:
        counts[trajectory.status.value] += 1
        if trajectory.is_trainable:
            kept.append(trajectory)
    return kept, counts
