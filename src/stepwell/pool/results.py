"""What the pool returns: summaries, stored trajectories, leased groups, counts."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from enum import StrEnum

from stepwell.core import JSON, Outcome, Status, Trajectory
from stepwell.core.errors import InputError

KEEP_TAG = "keep"  # a trajectory with this tag is never removed by `gc`
UNJUDGED_TAG = "unjudged"  # one that waits for its outcome
_MAX_NAME = 500


class Channel(StrEnum):
    """The purpose of a trajectory. Only `train` waits for a consumer before `gc` may remove it."""

    TRAIN = "train"
    EVAL = "eval"
    USER = "user"


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """One trajectory in a list, without its steps.

    `state` is the state of its group: filling, ready, leased or consumed. `num_steps` counts all
    stored steps, `reward` is the sum over the path; both include later corrections. `is_served` says
    whether it is one of the `group_size` that complete its group (an infrastructure failure, or a
    trajectory that finished after the group was complete, is only stored).
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
    outcome: Outcome | None = None  # the newest

    @property
    def is_open(self) -> bool:
        return self.status is None

    @property
    def is_success(self) -> bool:
        """Whether the task counts as solved: as judged, else as the status says (`Trajectory.is_success`)."""
        if self.outcome is None or self.status in (None, Status.INFRA_ERROR):
            return self.status is Status.SUCCESS
        return self.outcome.is_success


@dataclass(frozen=True, slots=True)
class RewardEntry:
    """One value of a reward part; the newest one of a step and part counts."""

    step: int | None  # None: the last step of the path
    part: str
    value: float
    source: str
    created_s: float


@dataclass(frozen=True, slots=True)
class OutcomeEntry:
    """One judged outcome of a trajectory; the newest one counts."""

    outcome: Outcome
    created_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if self.outcome.judge:
            check_name(self.outcome.judge, "judge")


@dataclass(frozen=True, slots=True)
class TrajectoryReport:
    """A report that was attached to a trajectory."""

    body: JSON
    created_s: float


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """One trajectory with everything the pool knows about it.

    `numbers[i]` is the number with which `trajectory.steps[i]` was appended. An open trajectory has no
    status yet; its `trajectory` then has `truncated`, because the episode would go on.
    """

    trajectory: Trajectory
    entry: TrajectorySummary
    numbers: tuple[int, ...]
    path: tuple[int, ...] | None
    source: dict[str, JSON]
    reports: tuple[TrajectoryReport, ...] = ()
    reward_history: tuple[RewardEntry, ...] = ()
    outcome_history: tuple[OutcomeEntry, ...] = ()

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
        """The oldest and the newest policy version on its path."""
        first, last = self.entry.first_version, self.entry.last_version
        return None if first is None or last is None else (first, last)


@dataclass(frozen=True, slots=True)
class Lease:
    """The consumer that holds a group, and until when (seconds since 1970, by the database's clock)."""

    consumer: str
    until_s: float


@dataclass(frozen=True, slots=True)
class LeasedGroup:
    """One complete, leased group; its trajectories are in the order in which they began."""

    group: str
    trajectories: list[Trajectory]
    lease: Lease


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A published policy version."""

    version: int
    fingerprint: str
    source: dict[str, JSON]
    created_s: float


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """Counts of one channel: `statuses` of trajectories, `groups` by state."""

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
    num_outcomes: int
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


def make_reward_entry(step: int | None, part: str, value: float, source: str) -> RewardEntry:
    """A checked reward with the current time."""
    check_name(part, "part")
    if source:
        check_name(source, "source")
    if not math.isfinite(value):
        raise InputError(f"reward part {part!r} is {value}; rewards must be finite")
    return RewardEntry(step, part, float(value), source, time.time())


def parse_channel(channel: Channel | str) -> Channel:
    try:
        return Channel(channel)
    except ValueError:
        known = ", ".join(each.value for each in Channel)
        raise InputError(f"channel {channel!r} is unknown; choose one of {known}") from None


def check_name(name: str, field_name: str) -> str:
    """Return `name` if both databases can store it unchanged: printable characters only."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise InputError(f"{field_name} must be 1 to {_MAX_NAME} printable characters, got {name!r:.100}")
    return name
