"""What the pool hands out: entries of a list, stored trajectories, taken groups, counts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from enum import StrEnum

from stepwell.core import JSON, Status, Trajectory
from stepwell.core.errors import InputError

KEEP_TAG = "keep"  # a trajectory so tagged is never collected
_MAX_NAME = 500


class Channel(StrEnum):
    """What a trajectory is for. Only `train` waits for a consumer before it may be collected."""

    TRAIN = "train"
    EVAL = "eval"
    USER = "user"


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """One trajectory in a list, without its steps.

    `state` is its group's: filling, ready, leased or consumed. `num_steps` counts all steps that are
    stored, `reward` sums those of the path; both follow later corrections. `is_served` is whether it
    is one of the `group_size` that make its group complete (an infrastructure failure, or one that
    finished after the group was complete, is stored only).
    """

    id: str
    channel: Channel
    group: str
    group_size: int
    state: str
    env: str
    task_id: str
    status: Status | None
    is_served: bool
    num_steps: int
    num_bytes: int
    reward: float | None
    first_version: int | None
    last_version: int | None
    created_s: float
    finished_s: float | None
    tags: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.status is None


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """One value that was ever given to a reward part; the newest of a step and part counts."""

    step: int | None  # None: the last step of the path, whichever that is
    part: str
    value: float
    source: str
    created_s: float


@dataclass(frozen=True, slots=True)
class TrajectoryReport:
    """Something somebody said about a trajectory."""

    body: JSON
    created_s: float


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """One trajectory with everything the pool knows about it.

    `numbers[i]` is the number under which `trajectory.steps[i]` was appended. While a trajectory is
    open it has no status yet; its `trajectory` then says `truncated`, as the episode would go on.
    """

    trajectory: Trajectory
    entry: TrajectorySummary
    numbers: tuple[int, ...]
    path: tuple[int, ...] | None
    source: dict[str, JSON]
    reports: tuple[TrajectoryReport, ...] = ()
    reward_history: tuple[RewardEntry, ...] = ()

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def is_open(self) -> bool:
        return self.entry.is_open

    @property
    def channel(self) -> Channel:
        return self.entry.channel

    @property
    def group_size(self) -> int:
        return self.entry.group_size

    @property
    def tags(self) -> tuple[str, ...]:
        return self.entry.tags

    @property
    def created_s(self) -> float:
        return self.entry.created_s

    @property
    def finished_s(self) -> float | None:
        return self.entry.finished_s

    @property
    def versions(self) -> tuple[int, int] | None:
        """The oldest and the newest policy version of its path."""
        first, last = self.entry.first_version, self.entry.last_version
        return None if first is None or last is None else (first, last)


@dataclass(frozen=True, slots=True)
class Lease:
    """Who holds a group, and until when (seconds since 1970, by the database's clock)."""

    consumer: str
    until_s: float


@dataclass(frozen=True, slots=True)
class LeasedGroup:
    """One complete group, leased; its trajectories in the order in which they were begun."""

    group: str
    trajectories: list[Trajectory]
    lease: Lease


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A policy version as it was published."""

    version: int
    fingerprint: str
    source: dict[str, JSON]
    created_s: float


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """Counts of one channel. `statuses` counts trajectories, `groups` counts groups by state."""

    num_trajectories: int = 0
    num_open: int = 0
    num_steps: int = 0
    num_bytes: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool holds. `consumers` maps a name to (groups leased, groups consumed, newest checkpoint)."""

    channels: dict[Channel, ChannelStats]
    consumers: dict[str, tuple[int, int, int | None]]
    tags: dict[str, int]
    num_rewards: int
    num_reports: int
    num_versions: int
    num_blobs: int
    blob_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class GcResult:
    """What `gc` removed, or would remove."""

    num_trajectories: int = 0
    num_steps: int = 0
    num_bytes: int = 0
    num_blobs: int = 0


def reward_entry(step: int | None, part: str, value: float, source: str) -> RewardEntry:
    """A reward given now, checked."""
    checked_name(part, "part")
    if source:
        checked_name(source, "source")
    if not math.isfinite(value):
        raise InputError(f"reward part {part!r} is {value}; rewards must be finite")
    return RewardEntry(step, part, float(value), source, time.time())


def checked_channel(channel: Channel | str) -> Channel:
    try:
        return Channel(channel)
    except ValueError:
        known = ", ".join(each.value for each in Channel)
        raise InputError(f"channel {channel!r} is unknown; choose one of {known}") from None


def checked_name(name: str, field_name: str) -> str:
    """`name` if both databases keep it as it is: some printable characters."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise InputError(f"{field_name} must be 1 to {_MAX_NAME} printable characters, got {name!r:.100}")
    return name
