"""The pool: stores trajectories from the first step to the checkpoint that contains them.

    producers: begin ─► append … ─► finish ─┐
                                            ▼
                                  groups, in order ─► take ─► acknowledge :consumers
                                            │
    curators:  tag, rescore, export, gc ◄───┘

A `Pool` is thread-safe and synchronous. Any number of processes may have the same pool open. Every
method that changes something returns after the commit. The guarantees are documented in the modules
that keep them: `commits` (accepted means committed), `writes` (nothing is lost), `leases` (nothing
is served twice).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from stepwell.core import JSON, ImageStore, Outcome, State, Status, Step, Task, Trajectory, make_id
from stepwell.core.errors import ConfigError, InputError
from stepwell.core.names import suggest_file
from stepwell.pool import curation, files, leases, outcomes, queries, retention, writes
from stepwell.pool.bulk_insert import add_trajectories
from stepwell.pool.curation import Score
from stepwell.pool.database import Database, Durable
from stepwell.pool.files import Format
from stepwell.pool.filters import Filter
from stepwell.pool.inputs import Completion, FullTrajectory, NewTrajectory, resolve_group_sizes
from stepwell.pool.reader import EVERYTHING, PoolReader
from stepwell.pool.records import RecentSteps, encode_rows, find_images
from stepwell.pool.results import (
    Channel,
    GcResult,
    LeasedGroup,
    OutcomeEntry,
    PublishedVersion,
    check_name,
    make_reward_entry,
    parse_channel,
)
from stepwell.pool.reward_history import MAIN_PART


def open_pool(
    where: str | Path,
    *,
    durable: Durable = "process",
    blobs: str | Path | None = None,
    must_exist: bool = False,
    require_write: bool = False,
) -> Pool:
    """Open the pool at a file, a folder or a database URL; creates or upgrades it.

    With `must_exist`, a missing file is an error and none is created.
    A file without write permission opens read-only; with `require_write` it is an error.
    `durable="process"`: a commit survives the kill of any process; `"power"`: also a power loss.
    `blobs` is the folder for images; by default SQLite pools have it beside the database.
    """
    path = Path(where)
    if must_exist and "://" not in str(where) and not (path / "pool.db" if path.is_dir() else path).is_file():
        inner = path / "pool" / "pool.db"
        guess = f" (the pool of this run is {inner.parent})" if inner.is_file() else suggest_file(path)
        raise ConfigError(
            f"there is no pool at {where}; give its file, a folder with pool.db, or a URL{guess}"
        )
    db = Database(where, durable)
    if require_write:
        db.require_write()
    if blobs is None and db.path is not None:
        blobs = db.path.with_suffix(".blobs")
    return Pool(db, blobs, flush_blobs=durable == "power")


class Pool(PoolReader):
    """An open pool. Use as a context manager, or call `close`."""

    def __init__(self, db: Database, blobs: str | Path | None, *, flush_blobs: bool = True) -> None:
        super().__init__(db, blobs, flush_blobs=flush_blobs)
        self._recent = RecentSteps()
        self._holder = make_id("holder")

    # Producers

    def begin(
        self,
        task: Task,
        *,
        id: str | None = None,
        group: str = "",
        group_size: int = 1,
        channel: Channel | str = Channel.TRAIN,
        source: Mapping[str, JSON] | None = None,
        tags: Sequence[str] = (),
    ) -> str:
        """Begin a trajectory and return its id. The same id and task again is the same trajectory."""
        beginning = NewTrajectory(id or make_id("traj"), task, group, group_size, channel, source or {}, tags)
        self._db.write(lambda connection: writes.begin_trajectory(self._db, connection, beginning))
        return beginning.id

    def is_quick(self) -> bool:
        """Whether a small write would not wait now: for another write, a disk or a server.

        Then an event loop may write directly: handing it to a thread would cost more.
        """
        return self._db.is_quick()

    def append(self, id: str, first_index: int, steps: Sequence[Step]) -> None:
        """Store steps number `first_index`, `first_index + 1`, … of an open trajectory.

        Steps may arrive out of order and leave gaps. The same step with the same number again
        changes nothing; a different one is refused.
        """
        if first_index < 0:
            raise InputError(f"first_index is {first_index}; steps are numbered from 0")
        if not steps:
            return
        seq, bases = self._recent.get_bases(id)
        numbered = dict(enumerate(steps, first_index))
        rows, new_bases = encode_rows(numbered, bases)
        encoded = (seq if bases else None), rows
        seq, is_new = self._db.write(
            lambda connection: writes.append_steps(self._db, connection, id, numbered, encoded)
        )
        if is_new:
            self._recent.remember(id, seq, new_bases)

    def reward(
        self, id: str, value: float, *, step: int | None = None, part: str = MAIN_PART, source: str = ""
    ) -> None:
        """Set a part of a step's reward (None: of the last step on the path), now or as a correction."""
        entry = make_reward_entry(step, part, value, source)
        self._db.write(lambda connection: writes.add_rewards(connection, id, [entry]))

    def assign_outcome(self, id: str, outcome: Outcome) -> None:
        """Store a judged outcome of a trajectory, now or as a correction; the newest one counts.

        The status stays what the environment or the system said.
        """
        self.assign_outcomes({id: outcome})

    def assign_outcomes(self, judged: Mapping[str, Outcome]) -> None:
        """Store a judged outcome of each of these trajectories, by id: all of them, or none."""
        entries = {id: OutcomeEntry(outcome) for id, outcome in judged.items()}
        self._db.write(lambda connection: outcomes.assign_outcomes(connection, entries))

    def report(self, id: str, body: JSON) -> None:
        """Attach a report, any text or JSON, to a trajectory."""
        created_s = time.time()
        self._db.write(lambda connection: writes.add_report(connection, id, body, created_s))

    def finish(
        self,
        id: str,
        status: Status,
        *,
        error: str = "",
        path: Sequence[int] | None = None,
        final_state: State | None = None,
        timings: Mapping[str, float] | None = None,
        info: Mapping[str, JSON] | None = None,
    ) -> None:
        """Finish a trajectory. `path` lists the steps to serve (None: all); the others stay stored."""
        completion = Completion(Status(status), error, path, final_state, timings or {}, info or {})
        self._db.write(lambda connection: writes.finish_trajectory(self._db, connection, id, completion))
        self._recent.forget(id)

    def add(
        self,
        trajectories: Sequence[Trajectory],
        *,
        channel: Channel | str = Channel.TRAIN,
        group_sizes: Mapping[str, int] | int | None = None,
        source: Mapping[str, JSON] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """Store finished trajectories, all or none.

        `group_sizes` is one size for all groups, or a size per group. Without it, a group's size is the
        number of its trajectories in this call (infrastructure failures not counted).
        """
        sizes = resolve_group_sizes(trajectories, group_sizes)
        batch = [
            FullTrajectory(
                NewTrajectory(t.id, t.task, t.group, sizes[t.group or t.id], channel, source or {}, tags),
                dict(enumerate(t.steps)),
                Completion(t.status, t.error, None, t.final_state, t.timings, t.info),
                outcomes=() if t.outcome is None else (OutcomeEntry(t.outcome),),
            )
            for t in trajectories
        ]
        if batch:
            self._db.write(lambda connection: add_trajectories(self._db, connection, batch))

    def store_images(self, trajectories: Iterable[Trajectory], images: ImageStore) -> int:
        """Store the images of trajectories, each once; returns how many are new.

        Call it before `add`: then every trajectory that is found has its images (`pool.load_image`).
        """
        states = (state for t in trajectories for state in (*(s.state for s in t.steps), t.final_state))
        shown = dict.fromkeys(name for state in states for name in sorted(find_images(state)))
        missing = [name for name in shown if not self.blobs.refresh(name)]
        for name in missing:
            self.blobs.put_image(images.get(name))
        return len(missing)

    # Consumers

    def take(
        self,
        consumer: str,
        num_groups: int,
        *,
        channel: Channel | str = Channel.TRAIN,
        where: Filter | None = None,
        lease_s: float = 600.0,
        wait_s: float = 0.0,
        read: bool = True,
    ) -> list[LeasedGroup]:
        """Lease up to `num_groups` complete groups, the oldest first.

        With `where`, all trajectories of a group must match. Waits up to `wait_s` for the first group.
        `read=False` does not read the trajectories, for a consumer that already has them.
        """
        check_name(consumer, "consumer")
        chosen = parse_channel(channel)
        if num_groups < 1 or not 0 < lease_s < math.inf:
            raise InputError(f"num_groups ({num_groups}) and lease_s ({lease_s}) must be above 0")
        if not leases.wait_for_groups(self._db, chosen, where, self._holder, wait_s):
            return []
        leased = self._db.write(
            lambda connection: leases.lease_groups(
                self._db, connection, self._holder, consumer, num_groups, chosen, where, lease_s
            )
        )
        members = queries.read_groups(self._db, [seq for seq, _, _ in leased]) if leased and read else {}
        return [LeasedGroup(name, members.get(seq, []), lease) for seq, name, lease in leased]

    def renew(self, consumer: str) -> int:
        """Restart all leases of a consumer; returns their number."""
        return self._db.write(lambda connection: leases.renew_leases(self._db, connection, consumer))

    def give_back(self, groups: Sequence[str]) -> int:
        """Make leased groups ready for anyone again; returns their number."""
        return self._db.write(lambda connection: leases.give_back(connection, groups))

    def acknowledge(self, consumer: str, groups: Sequence[str], checkpoint: int) -> None:
        """Mark groups as part of the training state that checkpoint number `checkpoint` will hold.

        Call it before that checkpoint becomes visible: `restore` from an earlier one brings them back.
        """
        if checkpoint < 0:
            raise InputError(f"checkpoint is {checkpoint}; checkpoints are numbered from 0")
        if groups:
            self._db.write(
                lambda connection: leases.acknowledge_groups(connection, consumer, groups, checkpoint)
            )

    def restore(self, consumer: str, checkpoint: int | None) -> int:
        """Resume from a checkpoint (None: from scratch): groups it does not contain are ready again.

        Returns their number. A consumer calls it whenever it starts.
        """
        return self._db.write(lambda connection: leases.restore_groups(connection, consumer, checkpoint))

    # Curators

    def tag(self, ids: Sequence[str], tag: str) -> None:
        """Tag trajectories; one tagged `keep` is never removed by `gc`."""
        check_name(tag, "tag")
        self._db.write(lambda connection: curation.tag_trajectories(self._db, connection, ids, tag))

    def untag(self, ids: Sequence[str], tag: str) -> None:
        """Remove a tag from trajectories."""
        self._db.write(lambda connection: curation.untag_trajectories(connection, ids, tag))

    def rescore(self, score: Score, where: Filter = EVERYTHING, *, source: str) -> int:
        """Add new reward parts to the steps of stored trajectories; returns how many changed."""
        return curation.rescore_trajectories(self._db, score, where, source)

    def publish_version(
        self, version: int, fingerprint: str, source: Mapping[str, JSON] | None = None
    ) -> None:
        """Record that a policy version came into use, once per version and fingerprint."""
        check_name(fingerprint, "fingerprint")
        new = PublishedVersion(version, fingerprint, dict(source or {}), time.time())
        self._db.write(lambda connection: curation.publish_version(self._db, connection, new))

    def versions(self) -> list[PublishedVersion]:
        """The published versions, in order of publication."""
        return curation.list_versions(self._db)

    # Housekeeping

    def gc(
        self,
        *,
        max_bytes: int | None = None,
        max_age_s: float | None = None,
        channel: Channel | str | None = None,
        unconsumed: bool = False,
        dry_run: bool = False,
    ) -> GcResult:
        """Remove the oldest groups until the rest is within the limits; returns what was removed.

        Bytes are those of stored steps. The age counts from when the last trajectory of a group
        finished. Never removed: open, leased or `keep`-tagged groups, and groups of the train channel
        that may not be in a checkpoint yet (`unconsumed=True` also removes those nobody took).
        """
        return retention.collect_garbage(
            self._db,
            self._find_blobs(),
            max_bytes=max_bytes,
            max_age_s=max_age_s,
            channel=None if channel is None else parse_channel(channel),
            unconsumed=unconsumed,
            dry_run=dry_run,
        )

    def export(
        self,
        path: str | Path,
        *,
        format: Format | None = None,
        where: Filter = EVERYTHING,
        progress: Callable[[int], None] = lambda num_done: None,
    ) -> int:
        """Write finished trajectories to a file, images to a folder beside it; returns their number."""
        return files.export_trajectories(self._db, self._find_blobs(), Path(path), format, where, progress)

    def import_(
        self,
        path: str | Path,
        *,
        channel: Channel | str | None = None,
        tags: Sequence[str] = (),
        progress: Callable[[int], None] = lambda num_done: None,
    ) -> int:
        """Store what `export` wrote, into `channel` if given; returns how many trajectories are new."""
        chosen = None if channel is None else parse_channel(channel)
        return files.import_trajectories(self._db, lambda: self.blobs, Path(path), chosen, tags, progress)
