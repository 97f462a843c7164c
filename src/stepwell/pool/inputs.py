"""What producers hand in, checked before it comes near the database."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.core import JSON, State, Status, Step, Task
from stepwell.core.errors import InputError
from stepwell.pool.records import encode_rows
from stepwell.pool.results import Channel, RewardEntry, TrajectoryReport, checked_channel, checked_name


@dataclass(frozen=True, slots=True)
class NewTrajectory:
    """What is known of a trajectory when it begins."""

    id: str
    task: Task
    group: str = ""  # empty: a group of its own, under its own id
    group_size: int = 1
    channel: Channel | str = Channel.TRAIN
    source: Mapping[str, JSON] = field(default_factory=dict)
    tags: Sequence[str] = ()
    created_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        checked_name(self.id, "id")
        checked_name(self.group or self.id, "group")
        checked_name(self.task.env, "task.env")
        checked_channel(self.channel)
        for tag in self.tags:
            checked_name(tag, "tag")
        if self.group_size < 1:
            raise InputError(f"group_size is {self.group_size}; a group has at least one trajectory")


@dataclass(frozen=True, slots=True)
class Completion:
    """What is known of a trajectory when it is finished."""

    status: Status
    error: str = ""
    path: Sequence[int] | None = None
    final_state: State | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, JSON] = field(default_factory=dict)
    finished_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if self.status in (Status.AGENT_ERROR, Status.INFRA_ERROR) and not self.error:
            raise InputError(f"status {self.status.value} needs `error`: what went wrong")
        if self.path is not None and any(b <= a for a, b in zip(self.path, self.path[1:], strict=False)):
            raise InputError(f"path must name steps in rising order, each once; got {list(self.path)}")


@dataclass(frozen=True, slots=True)
class FullTrajectory:
    """A trajectory that is stored at once: its steps by number, and what became of it.

    `is_served=False` is one that does not count for its group: it was late where it came from.
    """

    opening: NewTrajectory
    steps: Mapping[int, Step]
    ending: Completion
    rewards: Sequence[RewardEntry] = ()
    reports: Sequence[TrajectoryReport] = ()
    is_served: bool = True
    rows: list[dict[str, Any]] = field(init=False)  # encoded here, outside of the transaction

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", encode_rows(self.steps)[0])

    @property
    def group(self) -> str:
        return self.opening.group or self.opening.id

    @property
    def is_counted(self) -> bool:
        """Whether it takes a place of its group."""
        return self.is_served and self.ending.status is not Status.INFRA_ERROR
