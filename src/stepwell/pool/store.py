"""The pool: one store for trajectories, from the first step to the checkpoint that contains them.

    producers: begin ─► append … ─► finish ─┐
                                            ▼
                                  groups, in order ─► take ─► acknowledge :consumers
                                            │
    curators:  tag, rescore, export, gc ◄───┘

A `Pool` is one process's door to it: thread-safe and synchronous, and any number of processes may
have one open at the same time. Every method that changes something returns after the commit. The
guarantees stand in the modules that keep them: `commits` (accepted means committed), `producing`
(nothing is lost), `serving` (nothing is served twice).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from stepwell.core import JSON, ImageStore, State, Status, Step, Task, Trajectory, new_id
from stepwell.core.arrays import AnyArray
from stepwell.core.errors import ConfigError, InputError
from stepwell.pool import curation as curating
from stepwell.pool import files as exporting
from stepwell.pool import importing, retention
from stepwell.pool import leases as serving
from stepwell.pool import queries as reading
from stepwell.pool import statistics as counting
from stepwell.pool import writes as producing
from stepwell.pool.blobs import BlobStore
from stepwell.pool.bulk_insert import add_wholes
from stepwell.pool.curation import Score
from stepwell.pool.database import Database, Durable
from stepwell.pool.files import Format
from stepwell.pool.filters import Filter
from stepwell.pool.inputs import Completion, FullTrajectory, NewTrajectory
from stepwell.pool.records import RecentSteps, encode_rows, images_of
from stepwell.pool.results import (
    Channel,
    GcResult,
    LeasedGroup,
    PoolStats,
    PublishedVersion,
    StoredTrajectory,
    TrajectorySummary,
    checked_channel,
    checked_name,
    reward_entry,
)
from stepwell.pool.reward_history import MAIN_PART

_EVERYTHING = Filter()
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.1


def open_pool(
    where: str | Path,
    *,
    durable: Durable = "process",
    blobs: str | Path | None = None,
    must_exist: bool = False,
    require_write: bool = False,
) -> Pool:
    """Open the pool at a file, a folder or a database URL; makes it, or brings it up to date.

    With `must_exist` none is made: a file that is not there is refused.
    A file that may not be written opens for reading only; with `require_write` it is refused at once.
    `durable="process"`: a commit survives the kill of any process; `"power"`: also the loss of power.
    `blobs` is the folder for images; for SQLite it is beside the database unless given.
    """
    path = Path(where)
    if must_exist and "://" not in str(where) and not (path / "pool.db" if path.is_dir() else path).is_file():
        raise ConfigError(f"there is no pool at {where}; give its file, a folder with pool.db, or a URL")
    db = Database(where, durable)
    if require_write:
        db.require_write()
    if blobs is None and db.path is not None:
        blobs = db.path.with_suffix(".blobs")
    return Pool(db, blobs, flush_blobs=durable == "power")


class Pool:
    """An open pool. Use as a context manager, or call `close`."""

    def __init__(self, db: Database, blobs: str | Path | None, *, flush_blobs: bool = True) -> None:
        self._db = db
        self._blob_folder = blobs
        self._flush_blobs = flush_blobs
        self._blobs: BlobStore | None = None
        self._recent = RecentSteps()
        self._holder = new_id("holder")

    @property
    def is_read_only(self) -> bool:
        """Whether this pool can only be read: its file, or the folder around it, may not be written."""
        return self._db.is_read_only

    @property
    def blobs(self) -> BlobStore:
        """Images by content hash."""
        if self._blobs is None:
            if self._blob_folder is None:
                raise ConfigError("this pool has no folder for images; call open_pool(url, blobs=FOLDER)")
            self._blobs = BlobStore(self._blob_folder, flush=self._flush_blobs)
        return self._blobs

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database. What was accepted is committed already."""
        self._db.close()

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
        """Begin a trajectory and give its id. The same id and task again is the same trajectory."""
        opening = NewTrajectory(id or new_id("traj"), task, group, group_size, channel, source or {}, tags)
        self._db.write(lambda connection: producing.begin(self._db, connection, opening))
        return opening.id

    def is_quick(self) -> bool:
        """Whether a small write now would wait neither for another one nor for a disk or a server.

        Then an event loop may make it itself: handing it to a thread would cost more.
        """
        return self._db.is_quick()

    def append(self, id: str, first_index: int, steps: Sequence[Step]) -> None:
        """Store steps number `first_index`, `first_index + 1`, … of an open trajectory.

        Numbers may arrive out of order and leave gaps. The same step under the same number again
        changes nothing; another one is refused.
        """
        if first_index < 0:
            raise InputError(f"first_index is {first_index}; steps are numbered from 0")
        if not steps:
            return
        seq, bases = self._recent.bases(id)
        numbered = dict(enumerate(steps, first_index))
        rows, new_bases = encode_rows(numbered, bases)
        encoded = (seq if bases else None), rows
        seq, is_new = self._db.write(
            lambda connection: producing.append(self._db, connection, id, numbered, encoded)
        )
        if is_new:
            self._recent.remember(id, seq, new_bases)

    def reward(
        self, id: str, value: float, *, step: int | None = None, part: str = MAIN_PART, source: str = ""
    ) -> None:
        """Set a part of a step's reward (None: of the last step on the path), now or as a correction."""
        entry = reward_entry(step, part, value, source)
        self._db.write(lambda connection: producing.reward(connection, id, [entry]))

    def report(self, id: str, body: JSON) -> None:
        """Attach a free report, text or JSON, to a trajectory."""
        created_s = time.time()
        self._db.write(lambda connection: producing.report(connection, id, body, created_s))

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
        """End a trajectory. `path` names the steps that are served (None: all); the rest stays stored."""
        ending = Completion(Status(status), error, path, final_state, timings or {}, info or {})
        self._db.write(lambda connection: producing.finish(self._db, connection, id, ending))
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
        """Store whole trajectories, all or none.

        `group_sizes` is one size for all, or one by group; without it a group is what this call holds
        of it (infrastructure failures not counted).
        """
        sizes = _group_sizes(trajectories, group_sizes)
        wholes = [
            FullTrajectory(
                NewTrajectory(t.id, t.task, t.group, sizes[t.group or t.id], channel, source or {}, tags),
                dict(enumerate(t.steps)),
                Completion(t.status, t.error, None, t.final_state, t.timings, t.info),
            )
            for t in trajectories
        ]
        if wholes:
            self._db.write(lambda connection: add_wholes(self._db, connection, wholes))

    def store_images(self, trajectories: Iterable[Trajectory], pictures: ImageStore) -> int:
        """Store what trajectories show, each picture once; gives how many were not there yet.

        Call it before `add`: whoever finds a trajectory then finds its pictures (`pool.load_image`).
        """
        states = (state for t in trajectories for state in (*(s.state for s in t.steps), t.final_state))
        shown = dict.fromkeys(name for state in states for name in sorted(images_of(state)))
        missing = [name for name in shown if not self.blobs.refresh(name)]
        for name in missing:
            self.blobs.put_image(pictures.get(name))
        return len(missing)

    # Readers

    def load_image(self, name: str) -> AnyArray:
        """The pixels of a picture that a trajectory shows: what `ImageStore(load=pool.load_image)` reads."""
        try:
            return self.blobs.get_image(name)
        except KeyError as error:
            raise InputError(
                f"images: picture {name} is not in this pool; whoever stored the trajectory must call "
                "`store_images` too"
            ) from error

    def has(self, id: str) -> bool:
        """Whether a trajectory of this id was ever begun, and is still there."""
        return reading.has(self._db, id)

    def get(self, id: str, *, whole: bool = False) -> StoredTrajectory:
        """One trajectory with everything about it; `whole` also with steps off its path."""
        return reading.get(self._db, id, whole=whole)

    def find(
        self, where: Filter = _EVERYTHING, *, newest_first: bool = False, limit: int | None = None
    ) -> Iterator[TrajectorySummary]:
        """Entries without steps, in order of creation."""
        return reading.find(self._db, where, newest_first=newest_first, limit=limit)

    def trajectories(self, where: Filter = _EVERYTHING) -> Iterator[Trajectory]:
        """Whole trajectories in order of creation, read as they are asked for. Takes no lease."""
        return reading.trajectories_of(self._db, where)

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

        `read=False` leaves their trajectories out, for a consumer that has them at hand.
        With `where`, groups all of whose trajectories fit. Waits up to `wait_s` for the first one.
        """
        checked_name(consumer, "consumer")
        chosen = checked_channel(channel)
        if num_groups < 1 or not 0 < lease_s < math.inf:
            raise InputError(f"num_groups ({num_groups}) and lease_s ({lease_s}) must be above 0")
        if not self._wait_for_groups(chosen, where, wait_s):
            return []
        leased = self._db.write(
            lambda connection: serving.take(
                self._db, connection, self._holder, consumer, num_groups, chosen, where, lease_s
            )
        )
        members = reading.served(self._db, [seq for seq, _, _ in leased]) if leased and read else {}
        return [LeasedGroup(name, members.get(seq, []), lease) for seq, name, lease in leased]

    def _wait_for_groups(self, channel: Channel, where: Filter | None, wait_s: float) -> bool:
        until, pause = time.monotonic() + wait_s, _FIRST_WAIT_S
        while True:
            if self._db.read(
                lambda connection: serving.has_ready(self._db, connection, channel, where, self._holder)
            ):
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_WAIT_S)

    def renew(self, consumer: str) -> int:
        """Begin all leases of a consumer anew; gives their number."""
        return self._db.write(lambda connection: serving.renew(self._db, connection, consumer))

    def give_back(self, groups: Sequence[str]) -> int:
        """Make leased groups ready for anyone again; gives their number."""
        return self._db.write(lambda connection: serving.give_back(connection, groups))

    def acknowledge(self, consumer: str, groups: Sequence[str], checkpoint: int) -> None:
        """Groups are part of the training state that checkpoint number `checkpoint` will hold.

        Call it before that checkpoint becomes visible: whoever resumes from an earlier one calls
        `restore` and gets them again.
        """
        if checkpoint < 0:
            raise InputError(f"checkpoint is {checkpoint}; checkpoints are numbered from 0")
        if groups:
            self._db.write(lambda connection: serving.acknowledge(connection, consumer, groups, checkpoint))

    def restore(self, consumer: str, checkpoint: int | None) -> int:
        """Resume from a checkpoint (None: from nothing): what it does not hold is ready again.

        Gives the number of groups that came back. A consumer calls it whenever it starts.
        """
        return self._db.write(lambda connection: serving.restore(connection, consumer, checkpoint))

    # Curators

    def tag(self, ids: Sequence[str], tag: str) -> None:
        """Mark trajectories; one tagged `keep` is never collected."""
        checked_name(tag, "tag")
        self._db.write(lambda connection: curating.tag(self._db, connection, ids, tag))

    def untag(self, ids: Sequence[str], tag: str) -> None:
        """Take a mark away again."""
        self._db.write(lambda connection: curating.untag(connection, ids, tag))

    def rescore(self, score: Score, where: Filter = _EVERYTHING, *, source: str) -> int:
        """Give stored trajectories new reward parts per step, as corrections; gives how many changed."""
        return curating.rescore(self._db, score, where, source)

    def publish_version(
        self, version: int, fingerprint: str, source: Mapping[str, JSON] | None = None
    ) -> None:
        """Note that a policy version came into use. Once per version and fingerprint."""
        checked_name(fingerprint, "fingerprint")
        new = PublishedVersion(version, fingerprint, dict(source or {}), time.time())
        self._db.write(lambda connection: curating.publish_version(self._db, connection, new))

    def versions(self) -> list[PublishedVersion]:
        """The versions that were published, in that order."""
        return curating.published(self._db)

    # Housekeeping

    def count(self, where: Filter = _EVERYTHING) -> int:
        """How many trajectories fit."""
        return reading.count(self._db, where)

    def stats(self) -> PoolStats:
        """What the pool holds; looks at every trajectory, so not for a loop."""
        return counting.stats(self._db, self._blobs_if_any())

    def gc(
        self,
        *,
        max_bytes: int | None = None,
        max_age_s: float | None = None,
        channel: Channel | str | None = None,
        unconsumed: bool = False,
        dry_run: bool = False,
    ) -> GcResult:
        """Remove the oldest groups until the rest is within the limits; gives what went.

        Bytes are those of stored steps, ages those since the last trajectory of a group finished.
        Never removed: what is open, leased or tagged `keep`, and groups of the train channel that no
        checkpoint holds for sure (`unconsumed=True` removes those nobody took, too).
        """
        return retention.collect(
            self._db,
            self._blobs_if_any(),
            max_bytes=max_bytes,
            max_age_s=max_age_s,
            channel=None if channel is None else checked_channel(channel),
            unconsumed=unconsumed,
            dry_run=dry_run,
        )

    def export(
        self,
        path: str | Path,
        *,
        format: Format | None = None,
        where: Filter = _EVERYTHING,
        progress: Callable[[int], None] = lambda num_done: None,
    ) -> int:
        """Write finished trajectories to a file, with images in a folder beside it; gives their number."""
        return exporting.export(self._db, self._blobs_if_any(), Path(path), format, where, progress)

    def import_(
        self,
        path: str | Path,
        *,
        channel: Channel | str | None = None,
        tags: Sequence[str] = (),
        progress: Callable[[int], None] = lambda num_done: None,
    ) -> int:
        """Store what `export` wrote (into `channel`, if given); gives how many were not there yet."""
        chosen = None if channel is None else checked_channel(channel)
        return importing.import_(self._db, lambda: self.blobs, Path(path), chosen, tags, progress)

    def _blobs_if_any(self) -> BlobStore | None:
        return None if self._blob_folder is None else self.blobs


def _group_sizes(trajectories: Sequence[Trajectory], given: Mapping[str, int] | int | None) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for trajectory in trajectories:
        counts[trajectory.group or trajectory.id] += trajectory.status is not Status.INFRA_ERROR
    if isinstance(given, int):
        return dict.fromkeys(counts, given)
    found = {name: max(1, count) for name, count in counts.items()}
    return found if given is None else {**found, **{name: given[name] for name in given if name in found}}
