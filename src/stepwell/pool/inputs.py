"""What producers hand to the pool, checked before it reaches the database."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.core import JSON, State, Status, Step, Task, Trajectory
from stepwell.core.errors import InputError
from stepwell.core.trajectory import check_timings
from stepwell.pool.records import encode_rows
from stepwell.pool.results import (
    Channel,
    OutcomeEntry,
    RewardEntry,
    TrajectoryReport,
    check_name,
    parse_channel,
)


@dataclass(frozen=True, slots=True)
class NewTrajectory:
    """What is known about a trajectory when it begins."""

    id: str
    task: Task
    group: str = ""  # empty: its own group, named by its id
    group_size: int = 1
    channel: Channel | str = Channel.TRAIN
    source: Mapping[str, JSON] = field(default_factory=dict)
    tags: Sequence[str] = ()
    created_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        check_name(self.id, "id")
        check_name(self.group or self.id, "group")
        check_name(self.task.env, "task.env")
        parse_channel(self.channel)
        for tag in self.tags:
            check_name(tag, "tag")
        if self.group_size < 1:
            raise InputError(f"group_size is {self.group_size}; a group has at least one trajectory")


@dataclass(frozen=True, slots=True)
class Completion:
    """What is known about a trajectory when it is finished."""

    status: Status
    error: str = ""
    path: Sequence[int] | None = None
    final_state: State | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, JSON] = field(default_factory=dict)
    finished_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        check_timings(self.timings)
        if self.status in (Status.AGENT_ERROR, Status.INFRA_ERROR) and not self.error:
            raise InputError(f"status {self.status.value} needs `error`: what went wrong")
        if self.path is not None and any(b <= a for a, b in zip(self.path, self.path[1:], strict=False)):
            raise InputError(f"path must list steps in increasing order, each once; got {list(self.path)}")


@dataclass(frozen=True, slots=True)
class FullTrajectory:
    """A trajectory that is stored in one call: its steps by number, and how it ended.

    With `is_served=False` it does not count for its group: it finished late in the pool it comes from.
    """

    beginning: NewTrajectory
    steps: Mapping[int, Step]
    completion: Completion
    rewards: Sequence[RewardEntry] = ()
    outcomes: Sequence[OutcomeEntry] = ()
    reports: Sequence[TrajectoryReport] = ()
    is_served: bool = True
    rows: list[dict[str, Any]] = field(init=False)  # encoded here, outside the transaction

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", encode_rows(self.steps)[0])

    @property
    def group(self) -> str:
        return self.beginning.group or self.beginning.id

    @property
    def is_counted(self) -> bool:
        """Whether it takes one of the places of its group."""
        return self.is_served and self.completion.status is not Status.INFRA_ERROR


def resolve_group_sizes(
    trajectories: Sequence[Trajectory], given: Mapping[str, int] | int | None
) -> dict[str, int]:
    """The size of each group: as given, else the number of its trajectories that count."""
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        counts[trajectory.group or trajectory.id] += trajectory.status is not Status.INFRA_ERROR
    if isinstance(given, int):
        return dict.fromkeys(counts, given)
    found = {name: max(1, count) for name, count in counts.items()}
    return found if given is None else {**found, **{name: given[name] for name in given if name in found}}
