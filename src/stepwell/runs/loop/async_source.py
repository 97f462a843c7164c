"""The trajectories of an asynchronous run's updates: episodes that run in the background.

    StreamedSource.batch(update) ─► WorkerGroups ─► Stream.batch ─► the groups of the update, oldest first
                                        └─► keep ─► pool: every episode as it finishes, then leased

The contract is that of `PlayedSource`: what is learnt from is in the pool first, has the run's name as a tag,
and is acknowledged under the number of the checkpoint that will contain it. A resumed run gets back what
later updates had taken, and finishes groups that were cut short. What an update gets depends on which
episodes were faster, so such a run does not repeat bit for bit.

Recipes that compare siblings get complete groups of `train.group_size`; for the others every trajectory is
a group of its own and can be learnt from as soon as it is finished.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace

import numpy as np

from stepwell.config.run import RunConfig
from stepwell.core import Status, Trajectory
from stepwell.curriculum import TaskFeed
from stepwell.pool import Channel, Filter, Pool
from stepwell.rollout.jobs import Job
from stepwell.runs.build.components import Components
from stepwell.runs.build.worker_groups import WorkerGroups
from stepwell.runs.loop.sources import LEASE_S, Batch, describe_phase
from stepwell.runs.loop.task_feeds import find_group_size, find_place, find_update
from stepwell.workers.busy_times import BusySnapshot
from stepwell.workers.request_queue import QueueCounts
from stepwell.workers.staleness import GroupBuffer, PlayedGroup, TakenGroups
from stepwell.workers.stream import StreamCounts


@dataclass(slots=True)
class _Totals:
    """Totals at the last update, from which each update's own figures follow."""

    mark: BusySnapshot
    stream: StreamCounts
    queue: QueueCounts


@dataclass(eq=False)
class StreamedSource:
    """Plays the tasks of a run in its workers, while the trainer learns if the mode says so."""

    config: RunConfig
    components: Components
    run: str
    feed: TaskFeed
    workers: WorkerGroups
    should_stop: Callable[[], bool] = lambda: False
    is_fresh: bool = True
    note: Callable[[str], None] = lambda text: None
    _taken: list[str] = field(default_factory=list)
    _totals: _Totals | None = None

    def __post_init__(self) -> None:
        workers, train = self.config.workers, self.config.train
        self.group_size = find_group_size(self.config, self.components.recipe)
        size = workers.global_batch or train.tasks_per_update * train.group_size
        assert workers.mode != "off"
        self.buffer = GroupBuffer(
            workers.mode,
            groups_per_update=math.ceil(size / self.group_size),
            rollout_epochs=workers.rollout_epochs,
            max_staleness=workers.max_staleness,
            stale_data=workers.stale_data,
            num_updates=train.num_updates,
        )

    @property
    def pool(self) -> Pool:
        return self.components.pool

    # --- updates --------------------------------------------------------------------------

    def batch(self, update: int) -> Batch | None:
        """What update number `update` learns from; None if the run is to stop instead."""
        started = time.perf_counter()
        if self._totals is None:
            self._start_stream()
        try:
            self.workers.await_weights()
            taken = self.workers.call(self.workers.stream.take_batch(), self.should_stop)
        except CancelledError:
            return None
        self._taken += [group.name for group in (*taken.groups, *taken.dropped)]
        trajectories = [trajectory for group in taken.groups for trajectory in group.trajectories]
        steps = [step for trajectory in trajectories for step in trajectory.steps]
        self.workers.publisher.await_version(max((s.policy_version.last for s in steps), default=-1))
        metrics = self._update_metrics(update, taken)
        for restart in self.workers.take_restarts():
            self.note(restart)
        num_actions = sum(int(t.info.get("num_actions", len(t.steps))) for t in trajectories)  # type: ignore[arg-type, misc]
        num_retries, waited_s = int(metrics["episodes/refilled"]), time.perf_counter() - started
        self.workers.mark_training(True)
        return Batch(trajectories, num_actions, num_retries, waited_s, is_mixed=True, metrics=metrics)

    def _start_stream(self) -> None:
        """Let episodes start: the generators have their weights now."""
        stream, train = self.workers.stream, self.config.train
        self._totals = self._count_totals()
        self.workers.publisher.finish()

        def begin() -> None:
            stream.params = self.components.sampling_params(self.config.sampling.temperature)
            stream.timeout_s, stream.retries = train.episode_timeout_s, train.max_env_retries
            stream.store = self._store_async
            self.buffer.version = self.workers.publisher.version
            stream.buffer, stream.make_group = self.buffer, self.jobs
            for jobs, found in self._cut_short:
                stream.resume_group(jobs, found)

        self.workers.call(_run_on_loop(begin))

    async def _store_async(self, trajectories: Sequence[Trajectory], completed: Sequence[str]) -> None:
        await asyncio.to_thread(self._store_episodes, trajectories, completed)

    def _store_episodes(self, trajectories: Sequence[Trajectory], completed: Sequence[str]) -> None:
        where, is_stored = self._own, self.config.own_agent.function is not None
        if is_stored:  # by the gateway, so that groups may be complete there which are not yet here
            stored = (entry.id for name in completed for entry in self.pool.find(Filter(group=name)))
            where = Filter(ids=list(stored))
        else:
            if (images := self.components.backend.image_store) is not None:
                self.pool.store_images(trajectories, images)
            self.pool.add(
                trajectories, group_sizes=self.group_size, source={"run": self.run}, tags=(self.run,)
            )
        if completed:
            taken = self.pool.take(self.run, len(completed), where=where, lease_s=LEASE_S, read=False)
            assert {item.group for item in taken} == set(completed), "the pool served other groups"

    @property
    def _own(self) -> Filter | None:
        return None if self.config.pool.url is None else Filter(tags=(self.run,))

    def jobs(self, number: int) -> list[Job]:
        """The episodes of group `number`, a pure function of the seed, the number and the feed."""
        seeds = np.random.default_rng([self.config.seed, number, 11]).integers(2**62, size=self.group_size)
        place = find_place(number, self.config, self.group_size)
        before, i = divmod(place, self.config.train.tasks_per_update)
        task = self.feed.list_tasks(before + 1)[i]
        return [Job(task, f"{self.run}/g{number}", int(seed)) for seed in seeds]

    # --- checkpoints ----------------------------------------------------------------------

    def acknowledge(self, update: int) -> None:
        self.pool.acknowledge(self.run, self._taken, update)
        self._taken.clear()
        if self.config.pool.url is None:
            self.pool.gc(max_bytes=int(self.config.checkpoint.trajectories_mb * 1e6))

    def resume_from(self, update: int) -> None:
        """Take back what later updates had, and what was played but not learnt from."""
        assert self._totals is None, "episodes are under way already"
        self._taken.clear()
        self.pool.restore(self.run, update)
        self.buffer.num_taken = update
        ready = self.pool.take(self.run, 10**6, where=self._own, lease_s=LEASE_S)
        failed = [item.group for item in ready if self._is_failed(item.trajectories)]
        self._taken += failed
        self.buffer.ready = [
            PlayedGroup.from_trajectories(item.group, item.trajectories, update)
            for item in ready
            if item.group not in failed
        ]
        played = list(self.pool.find(Filter(channel=Channel.TRAIN, tags=(self.run,))))
        numbers = {int(entry.group.rpartition("/g")[2]) for entry in played}
        self.workers.stream.next_number = max(
            [*(n + 1 for n in numbers), update * self.buffer.groups_per_update]
        )
        filling: dict[str, list[str]] = {}
        for entry in played:
            if entry.state == "filling":
                filling.setdefault(entry.group, []).extend([entry.id] if entry.is_served else [])
        self._cut_short = [self._find_played(name, ids) for name, ids in filling.items()]

    def _is_failed(self, trajectories: Sequence[Trajectory]) -> bool:
        """Whether a user's own agent failed in all of them, so that there is nothing to learn from.

        A resumed run does not start with the failures of an agent that was mended meanwhile.
        """
        own = self.config.own_agent
        if own.function is None or own.learn_from_errors:
            return False
        return all(t.status is Status.AGENT_ERROR for t in trajectories)

    def _find_played(self, name: str, ids: Sequence[str]) -> tuple[list[Job], dict[int, Trajectory]]:
        """The jobs of a group that was cut short, and what was played of it."""
        jobs = self.jobs(int(name.rpartition("/g")[2]))
        by_seed = {t.info.get("seed"): t for t in (self.pool.get(id).trajectory for id in ids)}
        return jobs, {i: by_seed[job.seed] for i, job in enumerate(jobs) if job.seed in by_seed}

    _cut_short: Sequence[tuple[list[Job], dict[int, Trajectory]]] = ()

    # --- figures --------------------------------------------------------------------------

    def _count_totals(self) -> _Totals:
        workers = self.workers
        stream, queue = replace(workers.stream.counts), replace(workers.queue.counts)
        return _Totals(workers.spans.take_snapshot(), stream, queue)

    def _update_metrics(self, update: int, taken: TakenGroups) -> dict[str, float]:
        assert self._totals is not None
        before, self._totals = self._totals, self._count_totals()
        now = self._totals
        steps = [step for group in taken.groups for t in group.trajectories for step in t.steps]
        behind = [update - 1 - step.policy_version.first for step in steps] or [0]
        count_batches = max(now.queue.num_batches - before.queue.num_batches, 1)
        num_requests = max(now.queue.num_requests - before.queue.num_requests, 1)
        updates = [find_update(group.name, self.config, self.group_size) for group in taken.groups]
        newest = describe_phase(self.feed, max(updates, default=update))
        return (
            self.workers.figures(before.mark, now.mark)
            | self.workers.publisher.take_metrics()
            | newest
            | {
                "staleness/mean": float(np.mean(behind)),
                "staleness/max": float(max(behind)),
                "staleness/over": float(taken.num_over),
                "staleness/dropped": float(len(taken.dropped)),
                "episodes/refilled": float(now.stream.num_refilled - before.stream.num_refilled),
                "generators/batch": num_requests / count_batches,
                "generators/wait_ms": 1000.0 * (now.queue.waited_s - before.queue.waited_s) / num_requests,
            }
        )


async def _run_on_loop(function: Callable[[], None]) -> None:
    function()
