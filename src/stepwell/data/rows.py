"""Rows of a table in any supported file: JSONL, JSON, Parquet, CSV, or a `datasets` data set.

    for place, row in read_rows("tasks.parquet", "own_agent.tasks"): ...

A source is a file (plain or gzip), a directory written by `Dataset.save_to_disk`, or `datasets:NAME/SPLIT`, a
data set by name (`datasets:openai/gsm8k:main/train`: configuration `main`). The content of a file decides its
format before its name does, so a Parquet file called `.jsonl` is read as Parquet. `place` is the place of a
row ("line 3", "row 3"), and `setting` the setting that named the source; both are for error messages.

Invariants
* A line of JSONL ends only at a line feed: U+2028 and similar characters may occur inside a text.
* Values are JSON values. CSV values are always text; dates become ISO text.
* A source that cannot be read is a `ConfigError` that names setting, file and place.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepwell.core.errors import ConfigError
from stepwell.core.names import suggest_file
from stepwell.core.text import take_first_line

Row = tuple[str, dict[str, Any]]
PREFIX = "datasets:"
_JSON = re.compile(r'\s*\[?\s*\{\s*"')  # how rows in JSON begin, whatever the file's name says
_HELD_OUT = ("test", "validation", "held_out", "eval")


def read_rows(source: str, setting: str) -> Iterator[Row]:
    """The rows of a source in order, each with its place."""
    if source.startswith(PREFIX):
        return _open_named_data_set(source.removeprefix(PREFIX), setting)
    if "://" in source:
        raise ConfigError(
            f"{setting}: {source} is an address; download the file and give its path, or name a data set: "
            f"{PREFIX}NAME/SPLIT"
        )
    path = Path(source).expanduser()
    if path.is_dir():
        return _open_saved_data_set(path, setting)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{setting}: cannot read {path} ({error.strerror}){suggest_file(path) or '; correct the path'}"
        ) from error
    return _read_content(path, content, setting)


def name_source(source: str) -> str:
    """The name of a source's rows: the name of its file or data set."""
    if source.startswith(PREFIX):
        return source.removeprefix(PREFIX).rpartition("/")[0].rpartition("/")[2].partition(":")[0]
    return Path(source).name.split(".")[0]


def _read_content(path: Path, content: bytes, setting: str) -> Iterator[Row]:
    where = f"{setting}: {path}"
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise ConfigError(f"{where} is a damaged gzip file ({error}); copy it again") from error
    if content[:4] == b"PAR1":
        return _read_parquet(content, where)
    ending = {suffix.lower() for suffix in path.suffixes}
    if ".parquet" in ending:
        raise ConfigError(f"{where} is not Parquet, whatever its name says; copy it again or rename it")
    if content[:4] == b"PK\x03\x04":
        raise ConfigError(f"{where} is a ZIP archive or a spreadsheet; save its table as CSV or JSONL")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is neither Parquet nor UTF-8 text ({error}); save it as JSONL") from None
    if ending & {".csv", ".tsv"} and not _JSON.match(text):
        return _read_csv(text, "\t" if ".tsv" in ending else ",", where)
    return _read_json_list(text, where) if text.lstrip()[:1] == "[" else _read_json_lines(text, where)


def _read_json_lines(text: str, where: str) -> Iterator[Row]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"line {number}"
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ConfigError(
                    f"{where}, {place} is not JSON ({error}); write one object per line"
                ) from None
            yield place, _require_object(value, where, place)


def _read_json_list(text: str, where: str) -> Iterator[Row]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error})") from None
    for number, value in enumerate(values, start=1):
        yield f"item {number}", _require_object(value, where, f"item {number}")


def _require_object(value: Any, where: str, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}, {place} is not an object; write fields, such as {{'question': '...'}}")
    return value


def _read_csv(text: str, delimiter: str, where: str) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        if not reader.fieldnames:
            raise ConfigError(f"{where} is empty; its first line must name the columns")
        if len(reader.fieldnames) == 1 and ({";", "\t", ","} & set(reader.fieldnames[0])):
            name = "tabs" if delimiter == "\t" else "commas"
            raise ConfigError(
                f"{where} has the one column {reader.fieldnames[0]!r}; separate columns by {name}"
            )
        if twice := [name for name, count in Counter(reader.fieldnames).items() if count > 1]:
            raise ConfigError(f"{where} has two columns called {twice[0]!r}; rename one of them")
        for row in reader:
            place = f"line {reader.line_num}"
            if None in row or None in row.values():
                count = len(reader.fieldnames)
                raise ConfigError(f"{where}, {place} does not have the {count} columns of the first line")
            yield place, {name: value for name, value in row.items() if name != "split" or value}
    except csv.Error as error:
        raise ConfigError(f"{where}, line {reader.line_num} is not CSV ({error})") from None


def _read_parquet(content: bytes, where: str) -> Iterator[Row]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(
            f"{where} is Parquet, which needs pyarrow: pip install 'stepwell[parquet]'"
        ) from error
    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(
            f"{where} is a damaged Parquet file ({take_first_line(error)}); copy it again"
        ) from error
    return _make_plain_rows(table.to_pylist(), where)


def _open_saved_data_set(path: Path, setting: str) -> Iterator[Row]:
    where = f"{setting}: {path}"
    if not any((path / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
        raise ConfigError(
            f"{where} is a folder, but not a saved data set; give a file, or what Dataset.save_to_disk wrote"
        )
    datasets = _import_datasets(where)
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # the package raises many exception types for a damaged folder
        raise ConfigError(
            f"{where} cannot be opened as a data set ({take_first_line(error)}); save it again"
        ) from error
    if not isinstance(found, Mapping):
        return _make_plain_rows(found, where)
    return (row for split, rows in found.items() for row in _make_plain_rows(rows, where, split))


def _open_named_data_set(text: str, setting: str) -> Iterator[Row]:
    where = f"{setting}: {PREFIX}{text}"
    name, _, split = text.rpartition("/")
    if not name or not split:
        raise ConfigError(
            f"{where} names no split; write datasets:NAME/SPLIT, such as datasets:org/name/train"
        )
    name, _, configuration = name.partition(":")
    datasets = _import_datasets(where)
    try:
        found = datasets.load_dataset(name, configuration or None, split=split)
    except (
        Exception
    ) as error:  # the package raises many kinds: not reachable, not found, gated, no such split
        raise ConfigError(
            f"{where}, that is data set {name!r} and split {split!r}, cannot be loaded "
            f"({take_first_line(error)}). Where the hub cannot be reached, save it elsewhere with "
            "Dataset.save_to_disk, copy the folder here and give its path"
        ) from error
    return _make_plain_rows(found, where)


def _import_datasets(where: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(f"{where} needs the package datasets: pip install 'stepwell[datasets]'") from error
    return datasets


def _make_plain_rows(rows: Any, where: str, split: str | None = None) -> Iterator[Row]:
    extra = {} if split is None else {"split": "held_out" if split in _HELD_OUT else "train"}
    for number, row in enumerate(rows, start=1):
        place = f"row {number}" if split is None else f"{split}, row {number}"
        yield (
            place,
            extra | {name: _to_plain(value, f"{where}, {place}, {name}") for name, value in row.items()},
        )


def _to_plain(value: Any, where: str) -> Any:
    """Convert a value to JSON types."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _to_plain(inner, where) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(inner, where) for inner in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    raise ConfigError(f"{where} is {type(value).__name__}, which JSON cannot hold; leave that column out")
