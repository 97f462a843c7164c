"""Staleness: which groups may be begun, and which finished groups an update learns from.

A version is an update: weights of version v have learnt from v updates. If update u = v + 1 learns from data
of version f, the data are v - f versions stale. `GroupBuffer` keeps count, as plain data without a clock:

    may_begin ─► begin_group ─► (played) ─► add_group ─► ready ─► take_groups: for the next update

Updates take the oldest groups first, `groups_per_update` at a time. So a group that begins now, behind n
others in the buffer, is used by weights of version `num_taken + n // groups_per_update`. It may begin only
if that is at most `max_staleness` versions after the present weights of the generators. A group can still
become older (later groups may finish earlier). Then it is dropped, or used and counted, as `stale_data`
says.

Modes (`config.workers`): `sync` and `rollout_async` begin groups only while the trainer waits. With
`train_async` the trainer waits for a whole epoch of `rollout_epochs` updates, and the next epoch is played
while it learns. `stream` begins whatever staleness allows.

Invariant: with `stale_data="drop"` nothing older than `max_staleness` is ever handed out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from stepwell.config.workers import WorkersConfig
from stepwell.core import ConfigError, Trajectory

Mode = Literal["sync", "rollout_async", "train_async", "stream"]


@dataclass(slots=True, eq=False)
class PlayedGroup:
    """A complete group. `version` is the oldest version that sampled a part of it."""

    name: str
    trajectories: list[Trajectory]
    version: int

    @classmethod
    def from_trajectories(cls, name: str, trajectories: Sequence[Trajectory], default: int) -> PlayedGroup:
        """`default` is the version of a group without any step."""
        found = [step.policy_version.first for t in trajectories for step in t.steps]
        return cls(name, list(trajectories), min(found, default=default))


@dataclass(slots=True)
class TakenGroups:
    """The groups of an update, and those that were too old. `num_over`: groups beyond the limit."""

    groups: list[PlayedGroup]
    dropped: list[PlayedGroup]
    num_over: int = 0


@dataclass(eq=False)
class GroupBuffer:
    """Groups that were begun and not used yet.

    `version` is that of the generators' weights; `awaited_version` that of weights on their way, for which
    groups wait in every mode but `stream`. `num_taken` counts the updates that got their groups, also
    those before a resume. `is_wanted`: the trainer waits.
    """

    mode: Mode
    groups_per_update: int
    rollout_epochs: int = 1
    max_staleness: int = 2
    stale_data: Literal["drop", "weight"] = "weight"
    num_updates: int | None = None
    num_taken: int = 0
    version: int = 0
    awaited_version: int = 0
    is_wanted: bool = False
    num_open: int = 0
    ready: list[PlayedGroup] = field(default_factory=list)

    def may_begin(self) -> bool:
        """Whether another group may begin now."""
        learnt_at = self.num_taken + (self.num_open + len(self.ready)) // self.groups_per_update
        if learnt_at - self.version > self.max_staleness:
            return False
        if self.num_updates is not None and learnt_at >= self.num_updates:
            return False
        if self.mode == "stream":
            return True
        if self.version < self.awaited_version:
            return False
        epoch = learnt_at // self.rollout_epochs
        if self.mode == "train_async":
            return epoch <= math.ceil(self.num_taken / self.rollout_epochs)
        return self.is_wanted and epoch == self.num_taken // self.rollout_epochs

    def begin_group(self) -> None:
        """Count a group that is begun."""
        self.num_open += 1

    def add_group(self, group: PlayedGroup) -> None:
        """Add a group that is complete now."""
        assert self.num_open > 0, "a group is complete that was never begun"
        self.num_open -= 1
        self.ready.append(group)

    def is_due(self) -> bool:
        """Whether there are enough groups for the next update."""
        is_first = self.num_taken % self.rollout_epochs == 0
        num_needed = self.rollout_epochs if is_first and self.mode != "stream" else 1
        if self.num_updates is not None:  # the last epoch may be a short one
            num_needed = min(num_needed, max(self.num_updates - self.num_taken, 1))
        return len(self._list_usable()) >= num_needed * self.groups_per_update

    def take_groups(self) -> TakenGroups | None:
        """The groups of the next update, or None if there are not enough yet.

        Groups that are too old are removed and returned in any case, so that they can be played again.
        """
        usable = self._list_usable()
        kept = set(map(id, usable))  # groups are many in a large cluster
        dropped = [group for group in self.ready if id(group) not in kept]
        self.ready = usable
        if not self.is_due():
            return TakenGroups([], dropped) if dropped else None
        self.ready.sort(key=lambda group: group.version)  # stable: then in order of completion
        groups = self.ready[: self.groups_per_update]
        del self.ready[: self.groups_per_update]
        num_over = sum(self.num_taken - group.version > self.max_staleness for group in groups)
        self.num_taken += 1
        return TakenGroups(groups, dropped, num_over)

    def _list_usable(self) -> list[PlayedGroup]:
        if self.stale_data == "weight":
            return list(self.ready)
        return [group for group in self.ready if self.num_taken - group.version <= self.max_staleness]


def compute_min_staleness(config: WorkersConfig) -> int:
    """The smallest `max_staleness` with which a run can continue.

    When the trainer waits for the update after u, the weights of the generators may be `sync_interval - 1`
    updates old. If it waits for a whole epoch, the last group is used `rollout_epochs - 1` updates later.
    """
    epochs = 1 if config.mode == "stream" else config.rollout_epochs
    return epochs - 1 + config.sync_interval - math.gcd(epochs, config.sync_interval)


def check_staleness(config: WorkersConfig) -> None:
    """Refuse settings with which the trainer would wait for groups that may never begin."""
    if config.max_staleness < (needed := compute_min_staleness(config)):
        raise ConfigError(
            f"workers.max_staleness ({config.max_staleness}) is below {needed}, the minimum for "
            f"workers.rollout_epochs ({config.rollout_epochs}) and workers.sync_interval "
            f"({config.sync_interval}) in mode {config.mode!r}; raise it, or lower those"
        )
