"""Filters of trajectories, and their conditions in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, exists, false, func, select

from stepwell.core import Status
from stepwell.core.errors import InputError
from stepwell.core.names import suggest_name
from stepwell.pool.outcomes import build_success_conditions
from stepwell.pool.results import Channel, parse_channel
from stepwell.pool.schema import groups, tags, trajectories


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selects trajectories. All given conditions must hold; an empty filter matches everything.

    Versions: no step of the path is older than `min_version` or newer than `max_version`. Rewards:
    the sum over the path. Times: when the trajectory began (seconds since 1970), `until_s` excluded.
    It must have all `tags` and none of `without_tags`. An open trajectory has neither versions nor a
    reward yet, so a bound on them excludes it. `is_success`: the task counts as solved, as judged by the
    newest outcome, else by the status; False selects what was finished without success, infrastructure
    failures excluded.
    """

    channel: Channel | str | None = None
    statuses: Sequence[Status | str] | None = None
    min_version: int | None = None
    max_version: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    tags: Sequence[str] = ()
    without_tags: Sequence[str] = ()
    since_s: float | None = None
    until_s: float | None = None
    task_id: str | None = None
    env: str | None = None
    group: str | None = None
    is_open: bool | None = None
    is_success: bool | None = None
    ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.channel is not None:
            object.__setattr__(self, "channel", parse_channel(self.channel))
        for name in ("tags", "without_tags", "ids", "statuses"):
            if isinstance(getattr(self, name), str):
                raise InputError(f"{name} is a single string; give a list of strings")
        if self.statuses is not None:
            object.__setattr__(self, "statuses", tuple(_parse_status(status) for status in self.statuses))

    def build_conditions(self, *, of_few: bool = False) -> list[ColumnElement[bool]]:
        """The conditions on a row of `trajectories`.

        With `of_few`, only a few rows are tested; each reads its own tags, however many others have them.
        """
        t = trajectories.c
        found: list[ColumnElement[bool]] = []
        for column, value in ((t.channel, self.channel), (t.task_id, self.task_id), (t.env, self.env)):
            if value is not None:
                found.append(column == str(value))
        bounds = (
            (t.first_version, self.min_version, t.last_version, self.max_version),
            (t.reward, self.min_reward, t.reward, self.max_reward),
        )
        for low_column, low, high_column, high in bounds:
            found += [] if low is None else [low_column >= low]
            found += [] if high is None else [high_column <= high]
        found += [] if self.since_s is None else [t.created_s >= self.since_s]
        found += [] if self.until_s is None else [t.created_s < self.until_s]
        return found + self._build_memberships(_counts_tag if of_few else _has_tag)

    def _build_memberships(self, has_tag: Callable[[str], ColumnElement[bool]]) -> list[ColumnElement[bool]]:
        t = trajectories.c
        found: list[ColumnElement[bool]] = []
        if self.statuses is not None:
            found.append(t.status.in_([str(status) for status in self.statuses]))
        if self.ids is not None:
            found.append(t.id.in_(list(self.ids)) if self.ids else false())
        if self.is_open is not None:
            found.append(t.status.is_(None) if self.is_open else t.status.is_not(None))
        if self.is_success is not None:
            found += build_success_conditions(self.is_success)
        if self.group is not None:
            found.append(t.group.in_(select(groups.c.seq).where(groups.c.name == self.group)))
        found += [has_tag(tag) for tag in self.tags]
        found += [~has_tag(tag) for tag in self.without_tags]
        return found


def _has_tag(tag: str) -> ColumnElement[bool]:
    return exists().where(tags.c.trajectory == trajectories.c.seq, tags.c.tag == tag)


def _counts_tag(tag: str) -> ColumnElement[bool]:
    """Like `_has_tag`, but counted: PostgreSQL may turn an `exists` into a join with all tagged rows."""
    own = (tags.c.trajectory == trajectories.c.seq) & (tags.c.tag == tag)
    return select(func.count()).select_from(tags).where(own).correlate(trajectories).scalar_subquery() > 0


def _parse_status(status: Status | str) -> Status:
    try:
        return Status(status)
    except ValueError:
        known = suggest_name(str(status), (each.value for each in Status), "Known")
        raise InputError(f"status {status!r} is unknown{known}") from None
