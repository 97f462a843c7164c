"""Trajectories into files: JSONL (plain or gzip) for reading by eye, Parquet for tables.

One line or row per trajectory (`forms`). The file appears under its name when it is whole. Images
go into a blob store beside it (`NAME.images`), each once.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from stepwell.core.errors import ConfigError, InputError
from stepwell.pool.blobs import BlobStore
from stepwell.pool.database import Database
from stepwell.pool.file_format import form_of, to_json
from stepwell.pool.filters import Filter
from stepwell.pool.queries import stored

Format = Literal["parquet", "jsonl"]
_STEPS_PER_ROW_GROUP = 2000
# Columns that hold JSON as text: their keys differ from world to world.
JSON_COLUMNS = ("timings", "info", "source", "rewards", "reports")
STEP_JSON_COLUMNS = ("reward_parts", "info")


class _Sink(Protocol):
    def write(self, form: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def export(
    db: Database,
    blobs: BlobStore | None,
    path: Path,
    format: Format | None,
    where: Filter,
    progress: Callable[[int], None],
) -> int:
    """Write what fits; gives the number of trajectories. Open ones are left out."""
    if where.is_open:
        raise InputError("is_open: an open trajectory cannot be exported; finish it first")
    kind = format or format_of(path)
    if kind not in ("parquet", "jsonl"):
        raise InputError(f"format {kind!r} is unknown; choose parquet or jsonl")
    num_done = 0
    beside = _Images(blobs, images_beside(path))
    with _whole_file(path) as part:
        sink: _Sink = _Parquet(part) if kind == "parquet" else _Lines(part, packed=path.suffix == ".gz")
        try:
            for found in stored(db, replace(where, is_open=False)):
                form = form_of(found)
                sink.write(form)
                beside.copy(form)
                num_done += 1
                progress(num_done)
        finally:
            sink.close()
    return num_done


def format_of(path: Path) -> Format:
    """The format a file's name says."""
    endings = path.name.removesuffix(".gz").rsplit(".", 1)[-1]
    if endings == "parquet":
        return "parquet"
    if endings in ("jsonl", "json"):
        return "jsonl"
    raise InputError(f"{path.name!r} does not say its format; end it in .parquet, .jsonl or .jsonl.gz")


def images_beside(path: Path) -> Path:
    return path.with_name(path.name + ".images")


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class _Images:
    """Copies every image a form shows, once, where the pool has it."""

    def __init__(self, source: BlobStore | None, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._target: BlobStore | None = None
        self._done: set[str] = set()

    def copy(self, form: Mapping[str, Any]) -> None:
        if self._source is None:
            return
        for key in images_in(form) - self._done:
            if key in self._source:
                self._target = self._target or BlobStore(self._folder)
                self._target.put(self._source.get(key))
            self._done.add(key)


def images_in(form: Mapping[str, Any]) -> set[str]:
    states: Iterable[Mapping[str, Any] | None] = [*form["steps"], form["final_state"]]
    return {span["image"] for state in states if state for span in state.get("images") or ()}


class _Lines:
    def __init__(self, path: Path, *, packed: bool) -> None:
        self._file = gzip.open(path, "wt") if packed else path.open("w")  # noqa: SIM115, closed by close

    def write(self, form: dict[str, Any]) -> None:
        self._file.write(to_json(form) + "\n")

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """Rows in groups of some thousand steps, so that neither side holds a whole file in memory."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = arrow()
        self._schema = parquet_schema(self._arrow)
        self._writer = self._parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._num_steps = 0

    def write(self, form: dict[str, Any]) -> None:
        self._rows.append(_row(form))
        self._num_steps += len(form["steps"])
        if self._num_steps >= _STEPS_PER_ROW_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(self._arrow.Table.from_pylist(self._rows, self._schema))
        self._rows, self._num_steps = [], 0


def _row(form: dict[str, Any]) -> dict[str, Any]:
    row = {**form, **{name: to_json(form[name]) for name in JSON_COLUMNS}}
    row["task"] = {**form["task"], "content": json.dumps(form["task"]["content"])}
    row["steps"] = [
        {**step, **{name: to_json(step[name]) for name in STEP_JSON_COLUMNS if name in step}}
        for step in form["steps"]
    ]
    return row


def arrow() -> tuple[Any, Any]:
    """pyarrow, which only this needs."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install pyarrow (or use .jsonl)") from error
    return pyarrow, pyarrow.parquet


def parquet_schema(pa: Any) -> Any:
    """The columns of a form; `docs/pool.md` explains them."""
    text, number, whole = pa.string(), pa.float64(), pa.int64()
    images = pa.list_(pa.struct({"image": text, "start": pa.int32(), "length": pa.int32()}))
    ids = pa.list_(pa.int32())
    step = {
        "number": pa.int32(), "prompt_ids": ids, "images": images, "action_ids": ids, "text": text,
        "behavior_logprobs": pa.list_(pa.float32()), "reward": number, "reward_parts": text,
        "temperature": number, "top_p": number, "seed": whole, "finish_reason": text,
        "first_version": whole, "last_version": whole, "anchor": text, "info": text, "record": pa.binary(),
    }  # fmt: skip
    task = {
        "id": text, "env": text, "content": text, "instruction": text, "seed": whole, "tags": pa.list_(text),
    }  # fmt: skip
    columns = {
        "stepwell": pa.int32(), "id": text, "channel": text, "group": text, "group_size": pa.int32(),
        "is_served": pa.bool_(), "task": pa.struct(task), "status": text, "error": text, "reward": number,
        "first_version": whole, "last_version": whole, "created_s": number, "finished_s": number,
        "timings": text, "info": text, "source": text, "tags": pa.list_(text), "path": pa.list_(pa.int32()),
        "final_state": pa.struct({"prompt_ids": ids, "images": images, "record": pa.binary()}),
        "steps": pa.list_(pa.struct(step)), "rewards": text, "reports": text,
    }  # fmt: skip
    return pa.schema(columns)
