"""Roll-outs of runs and pools, with the checker's verdict, split by task.

A source is the folder of a run (its `pool/` is read), a pool's file or folder, or a URL. Truth is what the
environment's checker said when the episode ended: `Status.SUCCESS` is a YES, every other ending of an episode
a NO. Outcomes that somebody judged later are not truth here.

Invariants
* Episodes that the system ended (`infra_error`), open ones and those without a step are left out, and those
  of tasks without a checker.
* All roll-outs of a task are on the same side of the split, which depends on the task's content alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.core import ConfigError, Status, Trajectory, hash_content
from stepwell.pool import Filter, Pool, open_pool

_ENDINGS = tuple(status for status in Status if status is not Status.INFRA_ERROR)


@dataclass(frozen=True, slots=True)
class LabelledRollout:
    """One episode and whether the checker found its task solved."""

    trajectory: Trajectory
    is_success: bool


def open_source(source: str, *, for_writing: bool = False) -> Pool:
    """The pool of a run's folder, or the pool itself."""
    path = Path(source).expanduser()
    inside = path / "pool" if (path / "config.toml").is_file() else path
    where = source if "://" in source else str(inside)
    try:
        return open_pool(where, must_exist=True, require_write=for_writing)
    except ConfigError as error:
        raise ConfigError(
            f"{source!r} is neither the folder of a run that kept its trajectories nor a pool: {error}"
        ) from error


def iter_judgeable(
    pool: Pool, *, channel: str | None = None, tags: Sequence[str] = ()
) -> Iterator[Trajectory]:
    """The finished episodes with steps, in order of creation."""
    where = Filter(statuses=_ENDINGS, is_open=False, channel=channel, tags=tags)
    return (trajectory for trajectory in pool.trajectories(where) if trajectory.num_turns)


def read_rollouts(
    sources: Sequence[str], *, channel: str | None = None, tags: Sequence[str] = ()
) -> list[LabelledRollout]:
    """Every labelled episode of the sources; one that is in two of them counts once."""
    found: dict[str, LabelledRollout] = {}
    for source in sources:
        with open_source(source) as pool:
            for trajectory in iter_judgeable(pool, channel=channel, tags=tags):
                if trajectory.task.has_checker:
                    label = trajectory.status is Status.SUCCESS
                    found.setdefault(trajectory.id, LabelledRollout(trajectory, label))
    if not found:
        raise ConfigError(
            f"no finished episode with steps and a checker's verdict in {', '.join(sources)}; "
            "`stepwell pool ls` shows them"
        )
    return list(found.values())


def is_for_validation(rollout: LabelledRollout, share: float, seed: int) -> bool:
    """Whether a roll-out's task is among the validation tasks."""
    place = int(hash_content([rollout.trajectory.task.id, seed, "outcome model"])[:12], 16) / 16**12
    return place < share


def split_by_task(
    rollouts: Sequence[LabelledRollout], share: float, seed: int
) -> tuple[list[LabelledRollout], list[LabelledRollout]]:
    """Training and validation roll-outs; no task is in both."""
    if not 0.0 < share < 1.0:
        raise ConfigError(f"the share of validation tasks must be between 0 and 1, got {share}")
    train = [one for one in rollouts if not is_for_validation(one, share, seed)]
    return train, [one for one in rollouts if is_for_validation(one, share, seed)]
