"""Rows out of files of every kind, and refusals that name the place."""

from __future__ import annotations

import datetime
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.core import ConfigError
from stepwell.data.rows import name_source, read_rows

ROWS = [{"question": "2 + 3?", "answer": "5"}, {"question": "a\u2028b\x0bc\x85d", "answer": "x"}]


def rows(path: Path | str) -> list[dict[str, object]]:
    return [row for _, row in read_rows(str(path), "own_agent.tasks")]


def test_equal_rows_come_out_of_every_kind_of_file(tmp_path: Path) -> None:
    import datasets  # heavy: not in every process that collects tests

    lines = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_bytes(lines.encode())
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    for name in ("a.jsonl", "a.jsonl.gz", "a.json", "a.parquet", "saved"):
        assert rows(tmp_path / name) == ROWS, name


def test_a_csv_holds_texts_with_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('question,answer,split\n"a, ""b""\nc",5,\nd,6,held_out\n')
    assert rows(tmp_path / "a.csv") == [
        {"question": 'a, "b"\nc', "answer": "5"},
        {"question": "d", "answer": "6", "split": "held_out"},
    ]


def test_parquet_under_the_name_of_jsonl_is_read_as_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.jsonl")
    assert rows(tmp_path / "a.jsonl") == ROWS


def test_splits_of_a_saved_data_set_become_train_and_held_out(tmp_path: Path) -> None:
    import datasets

    parts = {name: datasets.Dataset.from_list([{"n": i}]) for i, name in enumerate(("train", "test"))}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "both"))
    assert rows(tmp_path / "both") == [{"split": "train", "n": 0}, {"split": "held_out", "n": 1}]


def test_dates_become_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"day": [datetime.date(2026, 1, 2)]}), tmp_path / "a.parquet")
    assert rows(tmp_path / "a.parquet") == [{"day": "2026-01-02"}]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{', "a.jsonl, line 3 is not JSON"),
        ("a.jsonl", b"3", "line 1 is not an object"),
        ("a.json", b"[{}, 3]", "item 2 is not an object"),
        ("a.jsonl", b"\xff\xfe\x00", "neither Parquet nor UTF-8 text"),
        ("a.parquet", b'{"a": 1}', "is not Parquet, whatever its name says"),
        ("a.parquet", b"PAR1 cut short", "is a damaged Parquet file"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "is a damaged gzip file"),
        ("a.xlsx", b"PK\x03\x04...", "spreadsheet; save its table as CSV"),
        ("a.csv", b"a;b\n1;2", "has the one column 'a;b'; separate columns by commas"),
        ("a.tsv", b"a,b\n1,2", "has the one column 'a,b'; separate columns by tabs"),
        ("a.csv", b"", "is empty; its first line must name the columns"),
        ("a.csv", b"a,b\n1,2\n3", "line 3 does not have the 2 columns of the first line"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(
    name: str, content: bytes, problem: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        rows(tmp_path / name)
    assert str(caught.value).startswith("own_agent.tasks: ")


def test_bytes_in_a_column_are_refused_by_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b"\x00"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"row 1, image is bytes, which JSON cannot hold"):
        rows(tmp_path / "a.parquet")


def test_a_missing_file_and_a_plain_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none.jsonl .No such file"):
        rows(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="is a folder, but not a saved data set"):
        rows(tmp_path)


def test_a_data_set_that_cannot_be_reached_says_how_to_copy_it() -> None:
    with pytest.raises(ConfigError, match=r"'acme/none' and split 'train', cannot be loaded.*save_to_disk"):
        rows("datasets:acme/none/train")
    with pytest.raises(ConfigError, match="names no split; write datasets:NAME/SPLIT"):
        rows("datasets:gsm8k")


def test_rows_are_named_after_their_source() -> None:
    assert name_source("data/tasks.jsonl.gz") == "tasks"
    assert name_source("datasets:openai/gsm8k:main/train") == "gsm8k"
