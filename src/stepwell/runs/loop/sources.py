"""Sources of an update's trajectories: episodes played now, or a pool filled earlier.

    PlayedSource    jobs ─► rollout ─► pool ─► take            (is_fresh: by the present weights)
    StoredSource    pool ─► shuffled epochs                    (offline)
    StreamedSource  workers ─► pool ─► oldest first            (`async_source.py`: episodes never stop)

Invariants
* An update learns from what the pool holds: trajectories are committed to it, then leased from it (what
  this process has just stored is not decoded again).
* What an update has taken is acknowledged under the number of the checkpoint that will contain it, before
  that checkpoint is written. A run that resumes from an older checkpoint gets back what came later.
  Episodes that were played before a crash are learnt from and not played again.
* The pool may be shared with other runs: everything of a run has its name as a tag.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from stepwell.algos.recipes import Recipe
from stepwell.config.run import OfflineConfig, RunConfig
from stepwell.core import ConfigError, EnvError, Status, Trajectory
from stepwell.curriculum import TaskFeed
from stepwell.pool import Channel, Filter, Pool, open_pool
from stepwell.rollout import Job, RolloutResult
from stepwell.runs.build.components import Components

LEASE_S = 24 * 3600.0  # a run's own pool has no other consumer; leases of a dead run return when it resumes


@dataclass(slots=True)
class Batch:
    """The trajectories of one update, in the order of their groups."""

    trajectories: list[Trajectory]
    num_actions: int = 0
    num_retries: int = 0
    played_s: float = 0.0
    is_mixed: bool = False  # may hold steps of earlier versions, which the trainer must correct for
    metrics: dict[str, float] = field(default_factory=dict)


class Source(Protocol):
    """Hands out the trajectories of update 1, 2, …"""

    is_fresh: bool
    """Whether they are sampled with the weights that learn from them, so that logprobs must agree."""

    def batch(self, update: int) -> Batch | None:
        """What update number `update` learns from; None if a stop was requested meanwhile."""

    def acknowledge(self, update: int) -> None:
        """Acknowledge what was taken: a checkpoint of this update is about to be written."""

    def resume_from(self, update: int) -> None:
        """Continue after this update; what later updates had taken is free again."""


@dataclass(eq=False)
class PlayedSource:
    """Plays the tasks that the feed of a run lists."""

    config: RunConfig
    components: Components
    run: str
    feed: TaskFeed
    is_fresh: bool = True
    _taken: list[str] = field(default_factory=list)
    _left: set[str] = field(default_factory=set)  # groups in the pool that no checkpoint contains

    @property
    def pool(self) -> Pool:
        return self.components.pool

    def batch(self, update: int) -> Batch:
        """The groups of this update: from the pool if it has them, else played now."""
        started = time.perf_counter()
        jobs = self.jobs(update)
        names = list(dict.fromkeys(job.group for job in jobs))
        has_started = not self._left.isdisjoint(names)  # in a process that was stopped
        found = self._take_groups(names) if has_started else {}
        missing = [job for job in jobs if job.group not in found]
        num_retries = 0
        if missing:
            rolled = self._play_jobs(update, missing)
            num_retries = rolled.num_retries
            known = {} if has_started or rolled.is_stored else _group_trajectories(rolled.trajectories)
            found |= self._take_groups([name for name in names if name not in found], known)
        assert found.keys() == set(names), "the pool served groups of another update"
        self._taken += names
        trajectories = [trajectory for name in names for trajectory in found[name]]
        num_actions = sum(int(t.info.get("num_actions", len(t.steps))) for t in trajectories)  # type: ignore[arg-type, misc]
        metrics = describe_phase(self.feed, update)
        return Batch(trajectories, num_actions, num_retries, time.perf_counter() - started, metrics=metrics)

    def _play_jobs(self, update: int, jobs: Sequence[Job]) -> RolloutResult:
        config, phase = self.config.train, self.feed.find_phase(update)
        self.components.runner.forget()
        rolled = self.components.runner.run(
            jobs,
            self.components.sampling_params(self.config.sampling.temperature),
            retries=config.max_env_retries,
            timeout_s=config.episode_timeout_s,
        )
        if not rolled.is_stored:
            if (images := self.components.backend.image_store) is not None:
                self.pool.store_images(rolled.trajectories, images)
            self.pool.add(
                [*rolled.trajectories, *rolled.failures],
                group_sizes=config.group_size,
                source={"run": self.run, "update": update, **({} if phase is None else {"phase": phase})},
                tags=(self.run,),
            )
        if rolled.failures:
            raise EnvError(
                f"update {update}: {len(rolled.failures)} episodes failed, also after "
                f"{config.max_env_retries} more tries (train.max_env_retries); the first: "
                f"{rolled.failures[0].error}. Finished episodes are stored; fix the environment and --resume"
            )
        return rolled

    def _take_groups(
        self, names: Sequence[str], known: Mapping[str, list[Trajectory]] | None = None
    ) -> dict[str, list[Trajectory]]:
        """Lease those of the named groups that are complete; no update has had them.

        They are the oldest, unless an earlier process left groups behind: some of these may be of later
        updates. Groups that this process has just stored (`known`) are not read back: the record is exact.
        """
        tags = () if self.config.pool.url is None else (self.run,)
        where = Filter(tags=tags) if tags else None
        if self._left:
            stored = (entry for name in names for entry in self.pool.find(Filter(group=name)))
            where = Filter(tags=tags, ids=[entry.id for entry in stored])
        taken = self.pool.take(self.run, len(names), where=where, lease_s=LEASE_S, read=not known)
        return {item.group: known[item.group] if known else item.trajectories for item in taken}

    def acknowledge(self, update: int) -> None:
        self.pool.acknowledge(self.run, self._taken, update)
        self._taken.clear()
        if self.config.pool.url is None:  # the run's own pool; a shared one is kept small by its owner
            self.pool.gc(max_bytes=int(self.config.checkpoint.trajectories_mb * 1e6))

    def resume_from(self, update: int) -> None:
        self._taken.clear()
        self.pool.restore(self.run, update)
        stored = self.pool.find(Filter(channel=Channel.TRAIN, tags=(self.run,)))
        self._left = {entry.group for entry in stored if entry.state != "consumed"}

    def jobs(self, update: int) -> list[Job]:
        """The episodes of an update, a pure function of the seed, the update and the feed."""
        config = self.config.train
        seeds = np.random.default_rng([self.config.seed, update]).integers(
            2**62, size=(config.tasks_per_update, config.group_size)
        )
        jobs = []
        for i, task in enumerate(self.feed.list_tasks(update)):
            group = f"{self.run}/{update}-{i}"
            jobs += [Job(task, group, int(seeds[i, k])) for k in range(config.group_size)]
        return jobs


@dataclass(eq=False)
class StoredSource:
    """Trajectories of a pool, epoch by epoch in shuffled order; the pool is only read."""

    config: RunConfig
    recipe: Recipe
    is_fresh: bool = False
    _epoch: int = -1

    def __post_init__(self) -> None:
        offline = self.config.offline
        assert offline.pool is not None
        self._pool = open_pool(offline.pool, must_exist=True)
        self._ids = [entry.id for entry in self._pool.find(make_filter(offline)) if entry.num_steps]
        if not self._ids:
            raise ConfigError(
                f"offline: no finished trajectory with steps in {offline.pool} fits (channel "
                f"{offline.channel!r}, tags {list(offline.tags)}); `stepwell pool ls` shows what is there"
            )

    @property
    def num_trajectories(self) -> int:
        return len(self._ids)

    def batch(self, update: int) -> Batch:
        """The next `tasks_per_update` x `group_size` of them; epochs follow each other without a gap."""
        started = time.perf_counter()
        size = self.config.train.tasks_per_update * self.config.train.group_size
        ids = [self._get_id((update - 1) * size + i) for i in range(min(size, len(self._ids)))]
        trajectories = [self._assign_rewards(self._pool.get(name).trajectory) for name in ids]
        return Batch(trajectories, played_s=time.perf_counter() - started)

    def _assign_rewards(self, trajectory: Trajectory) -> Trajectory:
        """Assign the reward parts of the recipe, whichever were summed when the trajectory was stored.

        `outcome` follows from the judged outcome, else from the status. The others come from what a step
        stores: all parts if it was played here (`info["parts"]`, unscaled), else those that were given.
        """
        is_won, last = trajectory.is_success, len(trajectory.steps) - 1
        for number, step in enumerate(trajectory.steps):
            raw: Any = step.info.get("parts") or {}
            known = {**step.reward_parts, **{k: v * self.config.rewards.scale for k, v in raw.items()}}
            known["outcome"] = self.config.rewards.scale if is_won and number == last else 0.0
            missing = [part for part in self.recipe.reward_parts if part not in known]
            if missing:
                raise ConfigError(
                    f"offline: recipe {self.recipe.name} rewards {', '.join(missing)}, but step {number} of "
                    f"{trajectory.id} has {', '.join(sorted(known))} only; set recipe.reward_parts, or give "
                    "rewards (`Pool.rescore`)"
                )
            step.assign_reward({part: known[part] for part in self.recipe.reward_parts})
        return trajectory

    def _get_id(self, place: int) -> str:
        epoch, place = divmod(place, len(self._ids))
        if self._epoch != epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.config.seed, epoch, 7]).permutation(len(self._ids))
        return self._ids[int(self._order[place])]

    def acknowledge(self, update: int) -> None:
        """Do nothing: a pool can be learnt from any number of times."""

    def resume_from(self, update: int) -> None:
        """Do nothing: the order follows from seed and update."""

    def close(self) -> None:
        self._pool.close()


def describe_phase(feed: TaskFeed, update: int) -> dict[str, float]:
    """The phase of an update as a figure; empty without phases."""
    phase = feed.find_phase(update)
    return {} if phase is None else {"phase": float(phase)}


def _group_trajectories(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, []).append(trajectory)
    return groups


def make_filter(offline: OfflineConfig) -> Filter:
    """The trajectories that settings ask for."""
    statuses = offline.statuses or tuple(s.value for s in Status if s is not Status.INFRA_ERROR)
    return Filter(
        channel=Channel(offline.channel),
        statuses=tuple(Status(name) for name in statuses),
        tags=offline.tags,
        without_tags=offline.without_tags,
        min_reward=offline.min_reward,
        is_success=offline.success,
        is_open=False,
    )
