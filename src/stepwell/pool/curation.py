"""Curation: tags, published policy versions, and new rewards for stored trajectories."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sqlalchemy import Connection, delete, select

from stepwell.core import Trajectory
from stepwell.core.errors import InputError
from stepwell.pool.database import Database
from stepwell.pool.filters import Filter
from stepwell.pool.queries import iter_stored
from stepwell.pool.results import PublishedVersion, make_reward_entry
from stepwell.pool.schema import tags, trajectories, versions
from stepwell.pool.writes import add_rewards, add_tags, encode_json

Score = Callable[[Trajectory], Sequence[Mapping[str, float]]]


def tag_trajectories(db: Database, connection: Connection, ids: Sequence[str], name: str) -> None:
    add_tags(db, connection, _find_seqs(connection, ids), [name])


def untag_trajectories(connection: Connection, ids: Sequence[str], name: str) -> None:
    seqs = _find_seqs(connection, ids)
    connection.execute(delete(tags).where(tags.c.trajectory.in_(seqs), tags.c.tag == name))


def _find_seqs(connection: Connection, ids: Sequence[str]) -> list[int]:
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
        "source": encode_json(version.source, "source"),
        "created_s": version.created_s,
    }
    connection.execute(db.insert_missing(versions), row)


def list_versions(db: Database) -> list[PublishedVersion]:
    rows = db.read(lambda connection: connection.execute(select(versions).order_by(versions.c.seq)).all())
    return [
        PublishedVersion(row.version, row.fingerprint, json.loads(row.source), row.created_s) for row in rows
    ]


def rescore_trajectories(db: Database, score: Score, where: Filter, source: str) -> int:
    """Compute the reward parts of every step with `score`, and store them as corrections.

    Only values that differ from the current ones are written, so a second run with the same score
    adds nothing. Returns the number of trajectories that changed.
    """
    num_changed = 0
    for found in iter_stored(db, where, with_branches=False):
        trajectory = found.trajectory
        scores = score(trajectory)
        if len(scores) != len(trajectory.steps):
            raise InputError(
                f"score returned {len(scores)} values for {len(trajectory.steps)} steps of {trajectory.id!r}"
            )
        given = [
            make_reward_entry(number, part, value, source)
            for number, step, parts in zip(found.numbers, trajectory.steps, scores, strict=True)
            for part, value in parts.items()
            if step.reward_parts.get(part) != float(value)
        ]
        if given:
            db.write(partial(add_rewards, id=trajectory.id, entries=given))
            num_changed += 1
    return num_changed
