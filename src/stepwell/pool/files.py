"""Trajectories to files and back: JSONL (plain or gzip) to read by eye, Parquet for tables.

A file holds one line or row per trajectory (`file_format`). Images are in a blob store beside the
file (`NAME.images`), each once.

Invariants
* An exported file appears under its name only when it is complete.
* Import is idempotent: a finished trajectory whose id is in the pool is skipped, even if its rewards
  have changed since. An interrupted import is simply run again.
* Import stores trajectories in batches, each in one transaction, and their images before them. A line
  that is not a trajectory stops the import. The error names the line, what is wrong, and how many
  trajectories before it are stored. None of its own batch is stored.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from sqlalchemy import Connection, select

from stepwell.core.errors import ConfigError, EncodingError, InputError
from stepwell.pool.blobs import BlobStore
from stepwell.pool.bulk_insert import add_trajectories
from stepwell.pool.database import Database
from stepwell.pool.file_format import from_document, to_document, to_json
from stepwell.pool.filters import Filter
from stepwell.pool.inputs import FullTrajectory
from stepwell.pool.queries import iter_stored
from stepwell.pool.results import Channel, check_name
from stepwell.pool.schema import trajectories

Format = Literal["parquet", "jsonl"]
_STEPS_PER_ROW_GROUP = 2000
_BATCH = 64
# Columns that hold JSON as text: their keys differ between environments
JSON_COLUMNS = ("timings", "info", "source", "rewards", "outcomes", "reports")
STEP_JSON_COLUMNS = ("reward_parts", "info")


class _Sink(Protocol):
    def write(self, document: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def export_trajectories(
    db: Database,
    blobs: BlobStore | None,
    path: Path,
    format: Format | None,
    where: Filter,
    progress: Callable[[int], None],
) -> int:
    """Write the matching finished trajectories; returns their number."""
    if where.is_open:
        raise InputError("is_open: an open trajectory cannot be exported; finish it first")
    kind = format or guess_format(path)
    if kind not in ("parquet", "jsonl"):
        raise InputError(f"format {kind!r} is unknown; choose parquet or jsonl")
    num_done = 0
    beside = _Images(blobs, find_image_folder(path))
    with _open_atomically(path) as part:
        sink: _Sink = _Parquet(part) if kind == "parquet" else _Lines(part, packed=path.suffix == ".gz")
        try:
            for found in iter_stored(db, replace(where, is_open=False)):
                document = to_document(found)
                sink.write(document)
                beside.copy(document)
                num_done += 1
                progress(num_done)
        finally:
            sink.close()
    return num_done


def guess_format(path: Path) -> Format:
    """The format according to a file's name."""
    endings = path.name.removesuffix(".gz").rsplit(".", 1)[-1]
    if endings == "parquet":
        return "parquet"
    if endings in ("jsonl", "json"):
        return "jsonl"
    raise InputError(f"{path.name!r} has no known format; use .parquet, .jsonl or .jsonl.gz")


def find_image_folder(path: Path) -> Path:
    return path.with_name(path.name + ".images")


@contextmanager
def _open_atomically(path: Path) -> Iterator[Path]:
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path} ({error.strerror or error}); choose another file") from error
    finally:
        part.unlink(missing_ok=True)


class _Images:
    """Copies the images of trajectories, each once, if the pool has them."""

    def __init__(self, source: BlobStore | None, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._target: BlobStore | None = None
        self._done: set[str] = set()

    def copy(self, document: Mapping[str, Any]) -> None:
        if self._source is None:
            return
        for key in find_document_images(document) - self._done:
            if key in self._source:
                self._target = self._target or BlobStore(self._folder)
                self._target.put(self._source.get(key))
            self._done.add(key)


def find_document_images(document: Mapping[str, Any]) -> set[str]:
    states: Iterable[Mapping[str, Any] | None] = [*document["steps"], document["final_state"]]
    return {span["image"] for state in states if state for span in state.get("images") or ()}


class _Lines:
    def __init__(self, path: Path, *, packed: bool) -> None:
        self._file = gzip.open(path, "wt") if packed else path.open("w")  # noqa: SIM115, closed by close

    def write(self, document: dict[str, Any]) -> None:
        self._file.write(to_json(document) + "\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """Row groups of some thousand steps, so that neither side holds the whole file in memory."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = import_pyarrow()
        self._schema = make_parquet_schema(self._arrow)
        self._writer = self._parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._read_parquet: list[dict[str, Any]] = []
        self._num_steps = 0

    def write(self, document: dict[str, Any]) -> None:
        self._read_parquet.append(_make_row(document))
        self._num_steps += len(document["steps"])
        if self._num_steps >= _STEPS_PER_ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._read_parquet:
            try:
                table = self._arrow.Table.from_pylist(self._read_parquet, self._schema)
            except UnicodeEncodeError as error:
                raise InputError(
                    "a text of these trajectories holds half of a surrogate pair, which Parquet cannot keep; "
                    "export a .jsonl file, which can"
                ) from error
            self._writer.write_table(table)
        self._read_parquet, self._num_steps = [], 0


def _make_row(document: dict[str, Any]) -> dict[str, Any]:
    row = {**document, **{name: to_json(document[name]) for name in JSON_COLUMNS}}
    row["task"] = {**document["task"], "content": json.dumps(document["task"]["content"])}
    row["steps"] = [
        {**step, **{name: to_json(step[name]) for name in STEP_JSON_COLUMNS if name in step}}
        for step in document["steps"]
    ]
    return row


def import_pyarrow() -> tuple[Any, Any]:
    """pyarrow, imported here because only Parquet files need it."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install 'stepwell[parquet]' (or use .jsonl)") from error
    return pyarrow, pyarrow.parquet


def make_parquet_schema(pa: Any) -> Any:
    """The columns of a Parquet file; `docs/pool.md` explains them."""
    text, number, full = pa.string(), pa.float64(), pa.int64()
    images = pa.list_(pa.struct({"image": text, "start": pa.int32(), "length": pa.int32()}))
    ids = pa.list_(pa.int32())
    step = {
        "number": pa.int32(), "prompt_ids": ids, "images": images, "action_ids": ids, "text": text,
        "behavior_logprobs": pa.list_(pa.float32()), "reward": number, "reward_parts": text,
        "temperature": number, "top_p": number, "seed": full, "finish_reason": text,
        "first_version": full, "last_version": full, "anchor": text, "info": text, "record": pa.binary(),
    }  # fmt: skip
    task = {
        "id": text, "env": text, "content": text, "instruction": text, "seed": full, "tags": pa.list_(text),
    }  # fmt: skip
    columns = {
        "stepwell": pa.int32(), "id": text, "channel": text, "group": text, "group_size": pa.int32(),
        "is_served": pa.bool_(), "task": pa.struct(task), "status": text, "error": text, "reward": number,
        "first_version": full, "last_version": full, "created_s": number, "finished_s": number,
        "timings": text, "info": text, "source": text, "tags": pa.list_(text), "path": pa.list_(pa.int32()),
        "final_state": pa.struct({"prompt_ids": ids, "images": images, "record": pa.binary()}),
        "steps": pa.list_(pa.struct(step)), "rewards": text, "outcomes": text, "reports": text,
    }  # fmt: skip
    return pa.schema(columns)


def import_trajectories(
    db: Database,
    blobs: Callable[[], BlobStore],
    path: Path,
    channel: Channel | None,
    tags: Sequence[str],
    progress: Callable[[int], None],
) -> int:
    """Store every trajectory of a file; returns how many are new."""
    for tag in tags:
        check_name(tag, "tag")
    if not path.is_file():
        raise InputError(f"{path} is not a file; give a file that `export` wrote")
    folder = find_image_folder(path)
    images = BlobStore(folder) if folder.is_dir() else None
    num_new, num_seen = 0, 0
    batch: list[_Placed] = []
    try:
        for place, document in _read_documents(path):
            batch.append(_Placed(place, _read_document(place, document, channel, tags)))
            if images is not None:
                _copy_images(place, document, images, blobs())
            if len(batch) >= _BATCH:
                num_new += _store_batch(db, batch)
                num_seen, batch = num_seen + len(batch), []
                progress(num_seen)
        num_new += _store_batch(db, batch)
    except InputError as error:
        raise InputError(f"{path}, {error}; {_describe_stored(num_seen)}") from error
    progress(num_seen + len(batch))
    return num_new


class _Placed(NamedTuple):
    """A trajectory with its place in the file, for error messages."""

    place: str
    full: FullTrajectory


def _read_document(place: str, document: Any, channel: Channel | None, tags: Sequence[str]) -> FullTrajectory:
    try:
        return from_document(document, channel, tags)
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


def _describe_stored(num_seen: int) -> str:
    if not num_seen:
        return "nothing was imported"
    return (
        f"the first {num_seen} trajectories are in the pool; correct the file and import it again, "
        "they will be skipped"
    )


def _copy_images(place: str, document: dict[str, Any], source: BlobStore, target: BlobStore) -> None:
    for key in find_document_images(document):
        if key in source:
            try:
                target.put(source.get(key))
            except EncodingError as error:
                raise InputError(f"{place}: {error}") from error


def _store_batch(db: Database, batch: Sequence[_Placed]) -> int:
    """Store the new trajectories of a batch, all or none; returns their number."""
    if not batch:
        return 0
    try:
        return db.write(lambda connection: _add_new(db, connection, [each.full for each in batch]))
    except InputError:  # one of them conflicts with the pool; find out which
        return db.write(lambda connection: sum(_add_placed(db, connection, each) for each in batch))


def _add_placed(db: Database, connection: Connection, placed: _Placed) -> int:
    try:
        return _add_new(db, connection, [placed.full])
    except InputError as error:
        raise InputError(f"{placed.place}: {error}") from error


def _add_new(db: Database, connection: Connection, batch: Sequence[FullTrajectory]) -> int:
    ids = [full.beginning.id for full in batch]
    query = select(trajectories.c.id).where(trajectories.c.id.in_(ids), trajectories.c.status.is_not(None))
    known = set(connection.execute(query).scalars())
    unknown = [full for full in batch if full.beginning.id not in known]
    return add_trajectories(db, connection, unknown) if unknown else 0


def _read_documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every document with its place in the file, for error messages."""
    if guess_format(path) == "parquet":
        yield from _read_parquet(path)
        return
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"line {number}", _parse_json(f"line {number}", line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"line {number + 1}: the file is damaged or cut short: {error}") from error


def _parse_json(place: str, text: bytes | str) -> Any:
    """Parse JSON; NaN and infinities are errors."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise InputError(f"{place}: the JSON is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place}: not JSON: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    pa, _ = import_pyarrow()
    try:
        for batch in _open_parquet(path).iter_batches(batch_size=_BATCH):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", _parse_row(f"row {number}", row)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"row {number + 1}: the file is damaged: {error}") from error


def _parse_row(place: str, row: dict[str, Any]) -> dict[str, Any]:
    def parse_fields(record: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        return {
            **record,
            **{name: _parse_json(place, record[name]) for name in names if record.get(name) is not None},
        }

    try:
        document = parse_fields(row, JSON_COLUMNS)
        document["task"] = parse_fields(row["task"], ("content",))
        document["steps"] = [parse_fields(step, STEP_JSON_COLUMNS) for step in row["steps"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{place}: not in the format of `export`: {error!r}") from error
    return document


def _open_parquet(path: Path) -> Any:
    pa, parquet = import_pyarrow()
    try:
        return parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is not a Parquet file: {error}") from error
