"""Files into a pool: what `export` wrote, or another program in the same form.

Idempotent: a finished trajectory whose id is there is passed over, whatever became of its rewards
since, so that an interrupted import is simply run again. Trajectories are stored in batches, each in one
transaction; their images are stored before. A line that is not a trajectory ends the import with its
number, what is wrong, and how many trajectories before it are stored; of its batch nothing is.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from stepwell.core.errors import EncodingError, InputError
from stepwell.pool.blobs import BlobStore
from stepwell.pool.bulk_insert import add_wholes
from stepwell.pool.database import Database
from stepwell.pool.file_format import whole_of
from stepwell.pool.files import (
    JSON_COLUMNS,
    STEP_JSON_COLUMNS,
    arrow,
    format_of,
    images_beside,
    images_in,
)
from stepwell.pool.inputs import FullTrajectory
from stepwell.pool.results import Channel, checked_name
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
    batch: list[_Placed] = []
    try:
        for place, form in _forms(path):
            batch.append(_Placed(place, _read_form(place, form, channel, tags)))
            if images is not None:
                _copy_images(place, form, images, blobs())
            if len(batch) >= _BATCH:
                num_new += _store(db, batch)
                num_seen, batch = num_seen + len(batch), []
                progress(num_seen)
        num_new += _store(db, batch)
    except InputError as error:
        raise InputError(f"{path}, {error}; {_describe_stored(num_seen)}") from error
    progress(num_seen + len(batch))
    return num_new


class _Placed(NamedTuple):
    """A trajectory with its place in the file, for error messages."""

    place: str
    whole: FullTrajectory


def _read_form(place: str, form: Any, channel: Channel | None, tags: Sequence[str]) -> FullTrajectory:
    try:
        return whole_of(form, channel, tags)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _describe_stored(num_seen: int) -> str:
    if not num_seen:
        return "nothing was imported"
    return (
        f"the first {num_seen} trajectories of the file are in the pool: mend it and import it again, "
        "those are passed over"
    )


def _copy_images(place: str, form: dict[str, Any], source: BlobStore, target: BlobStore) -> None:
    for key in images_in(form):
        if key in source:
            try:
                target.put(source.get(key))
            except EncodingError as error:
                raise InputError(f"{place}: {error}") from error


def _store(db: Database, batch: Sequence[_Placed]) -> int:
    """Store what is not there yet, all or none; gives its number."""
    if not batch:
        return 0
    try:
        return db.write(lambda connection: _add(db, connection, [each.whole for each in batch]))
    except InputError:  # one of them does not fit what is there: which?
        return db.write(lambda connection: sum(_add_placed(db, connection, each) for each in batch))


def _add_placed(db: Database, connection: Connection, placed: _Placed) -> int:
    try:
        return _add(db, connection, [placed.whole])
    except InputError as error:
        raise InputError(f"{placed.place}: {error}") from error


def _add(db: Database, connection: Connection, batch: Sequence[FullTrajectory]) -> int:
    ids = [whole.opening.id for whole in batch]
    query = select(trajectories.c.id).where(trajectories.c.id.in_(ids), trajectories.c.status.is_not(None))
    known = set(connection.execute(query).scalars())
    unknown = [whole for whole in batch if whole.opening.id not in known]
    return add_wholes(db, connection, unknown) if unknown else 0


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
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"line {number}", _parse(f"line {number}", line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"line {number + 1}: the file is damaged or cut short: {error}") from error


def _parse(place: str, text: bytes | str) -> Any:
    """JSON without NaN and infinities, which it has no words for."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InputError(f"{place}: not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place}: not JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    pa, _ = arrow()
    try:
        for batch in _parquet_file(path).iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", _form(f"row {number}", row)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"row {number + 1}: the file is damaged: {error}") from error


def _form(place: str, row: dict[str, Any]) -> dict[str, Any]:
    def parse(record: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        return {**record, **{name: _parse(place, record[name]) for name in names if record[name] is not None}}

    try:
        form = parse(row, JSON_COLUMNS)
        form["task"] = parse(row["task"], ("content",))
        form["steps"] = [parse(step, STEP_JSON_COLUMNS) for step in row["steps"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{place}: not as `export` writes it: {error!r}") from error
    return form


def _parquet_file(path: Path) -> Any:
    pa, parquet = arrow()
    try:
        return parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is not a Parquet file: {error}") from error
