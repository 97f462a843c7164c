"""What curators do to a pool: tags, published versions, and new rewards for stored trajectories."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection, delete, select

from stepwell.core import Trajectory
from stepwell.core.errors import InputError
from stepwell.pool.database import Database
from stepwell.pool.filters import Filter
from stepwell.pool.queries import stored
from stepwell.pool.results import PublishedVersion, reward_entry
from stepwell.pool.schema import tags, trajectories, versions
from stepwell.pool.writes import add_tags, dumps, reward

Score = Callable[[Trajectory], Sequence[Mapping[str, float]]]


def tag(db: Database, connection: Connection, ids: Sequence[str], name: str) -> None:
    add_tags(db, connection, _seqs(connection, ids), [name])


def untag(connection: Connection, ids: Sequence[str], name: str) -> None:
    seqs = _seqs(connection, ids)
    connection.execute(delete(tags).where(tags.c.trajectory.in_(seqs), tags.c.tag == name))


def _seqs(connection: Connection, ids: Sequence[str]) -> list[int]:
    query = select(trajectories.c.id, trajectories.c.seq).where(trajectories.c.id.in_(list(ids)))
    found = {row.id: row.seq for row in connection.execute(query)}
    missing = [id for id in ids if id not in found]
    if missing:
        raise InputError(f"trajectory {missing[0]!r} is not in the pool")
    return list(found.values())


def publish_version(db: Database, connection: Connection, version: PublishedVersion) -> None:
    row = {
        "version": version.version,
        "fingerprint": version.fingerprint,
        "source": dumps(version.source, "source"),
        "created_s": version.created_s,
    }
    connection.execute(db.insert_missing(versions), row)


def published(db: Database) -> list[PublishedVersion]:
    rows = db.read(lambda connection: connection.execute(select(versions).order_by(versions.c.seq)).all())
    return [
        PublishedVersion(row.version, row.fingerprint, json.loads(row.source), row.created_s) for row in rows
    ]


def rescore(db: Database, score: Score, where: Filter, source: str) -> int:
    """Ask `score` for the reward parts of every step, and keep them as corrections.

    Only values that differ from today's are written, so a second run with the same score adds
    nothing. Gives the number of trajectories that changed.
    """
    num_changed = 0
    for found in stored(db, where, whole=False):
        trajectory = found.trajectory
        scores = score(trajectory)
        if len(scores) != len(trajectory.steps):
            raise InputError(
                f"score gave {len(scores)} values for the {len(trajectory.steps)} steps of {trajectory.id!r}"
            )
        given = [
            reward_entry(number, part, value, source)
            for number, step, parts in zip(found.numbers, trajectory.steps, scores, strict=True)
            for part, value in parts.items()
            if step.reward_parts.get(part) != float(value)
        ]
        if given:
            db.write(partial(reward, id=trajectory.id, given=given))
            num_changed += 1
    return num_changed
