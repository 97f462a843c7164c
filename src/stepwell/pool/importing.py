"""Files into a pool: what `export` wrote, or another program in the same form.

Idempotent: a finished trajectory whose id is there is passed over, whatever became of its rewards
since, so that an interrupted import is simply run again. Trajectories are stored in batches, each in one
transaction; their images are stored before.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from stepwell.core.errors import InputError
from stepwell.pool.adding import add_wholes
from stepwell.pool.blobs import BlobStore
from stepwell.pool.database import Database
from stepwell.pool.entries import Channel, checked_name
from stepwell.pool.exporting import (
    JSON_COLUMNS,
    STEP_JSON_COLUMNS,
    arrow,
    format_of,
    images_beside,
    images_in,
)
from stepwell.pool.forms import whole_of
from stepwell.pool.given import Whole
from stepwell.pool.schema import trajectories

_BATCH = 64


def import_(
    db: Database,
    blobs: Callable[[], BlobStore],
    path: Path,
    channel: Channel | None,
    tags: Sequence[str],
    progress: Callable[[int], None],
) -> int:
    """Store every trajectory of a file; gives how many were not there yet."""
    for tag in tags:
        checked_name(tag, "tag")
    if not path.is_file():
        raise InputError(f"{path} is not a file; give one that `export` wrote")
    folder = images_beside(path)
    images = BlobStore(folder) if folder.is_dir() else None
    num_new, num_seen = 0, 0
    batch: list[Whole] = []
    for place, form in _forms(path):
        try:
            batch.append(whole_of(form, channel, tags))
        except InputError as error:
            raise InputError(f"{path}, {place}: {error}") from error
        if images is not None:
            _copy_images(form, images, blobs())
        if len(batch) >= _BATCH:
            num_new += _store(db, batch)
            num_seen, batch = num_seen + len(batch), []
            progress(num_seen)
    num_new += _store(db, batch)
    progress(num_seen + len(batch))
    return num_new


def _copy_images(form: dict[str, Any], source: BlobStore, target: BlobStore) -> None:
    for key in images_in(form):
        if key in source:
            target.put(source.get(key))


def _store(db: Database, batch: Sequence[Whole]) -> int:
    def work(connection: Connection) -> int:
        ids = [whole.opening.id for whole in batch]
        query = select(trajectories.c.id).where(
            trajectories.c.id.in_(ids), trajectories.c.status.is_not(None)
        )
        known = set(connection.execute(query).scalars())
        unknown = [whole for whole in batch if whole.opening.id not in known]
        return add_wholes(db, connection, unknown) if unknown else 0

    return db.write(work) if batch else 0


def count_forms(path: Path) -> int | None:
    """How many trajectories a file holds, where that is known without reading it."""
    if format_of(path) != "parquet":
        return None
    return int(_parquet_file(path).metadata.num_rows)


def _forms(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every form with its place in the file, for error messages."""
    if format_of(path) == "parquet":
        yield from _rows(path)
        return
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield f"line {number}", json.loads(line)
                except ValueError as error:
                    raise InputError(f"{path}, line {number}: not JSON: {error}") from error


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    for batch in _parquet_file(path).iter_batches(batch_size=_BATCH):
        for row in batch.to_pylist():
            number += 1
            try:
                yield f"row {number}", _form(row)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}, row {number}: not as `export` writes it: {error!r}") from error


def _form(row: dict[str, Any]) -> dict[str, Any]:
    form = {**row, **{name: json.loads(row[name]) for name in JSON_COLUMNS}}
    form["task"] = {**row["task"], "content": json.loads(row["task"]["content"])}
    form["steps"] = [
        {**step, **{name: json.loads(step[name]) for name in STEP_JSON_COLUMNS if step[name] is not None}}
        for step in row["steps"]
    ]
    return form


def _parquet_file(path: Path) -> Any:
    pa, parquet = arrow()
    try:
        return parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is not a Parquet file: {error}") from error
