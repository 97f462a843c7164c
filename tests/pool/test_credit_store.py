"""The store of credit: exact, bounded, without duplicates, readable by trajectory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import EncodingError
from stepwell.pool.credit_reading import (
    decode_record,
    list_credit_updates,
    list_step_credit,
    list_token_credit,
    read_credit,
    read_update_credit,
)
from stepwell.pool.credit_records import CLIPPED, TRAINED, CreditRecord, encode_record
from stepwell.pool.credit_store import CreditStore


def make_record(name: str = "a", lengths: tuple[int, ...] = (2, 3), update: int = 1) -> CreditRecord:
    num = sum(lengths)
    return CreditRecord(
        name,
        update,
        np.array(lengths, np.int32),
        np.array([[update - 1, update]] * len(lengths), np.int32),
        np.full(num, TRAINED, np.uint8),
        values=np.linspace(0, 1, num, dtype=np.float32),
        end_values=np.zeros(len(lengths), np.float32),
        advantages=np.repeat(np.arange(len(lengths), dtype=np.float32), lengths),
        ratios=np.ones(num, np.float32),
    )


def is_same(one: CreditRecord, other: CreditRecord) -> bool:
    names = ("tokens_per_step", "versions", "flags", "values", "end_values", "advantages", "ratios")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all((a is None and b is None) or np.array_equal(a, b) for a, b in pairs)


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_a_record_is_read_as_it_was_written(lengths: list[int], data: st.DataObject) -> None:
    num = sum(lengths)

    def draw(count: int) -> np.ndarray | None:  # type: ignore[type-arg]
        return np.array(data.draw(st.lists(floats, min_size=count, max_size=count)), np.float32)

    has_values, has_ratios, has_credit = (data.draw(st.booleans()) for _ in range(3))
    record = CreditRecord(
        "t",
        3,
        np.array(lengths, np.int32),
        np.array([[1, 2]] * len(lengths), np.int32),
        np.array(data.draw(st.lists(st.integers(0, 3), min_size=num, max_size=num)), np.uint8),
        values=draw(num) if has_values else None,
        end_values=draw(len(lengths)) if has_values else None,
        advantages=draw(num) if has_credit else None,
        ratios=draw(num) if has_ratios else None,
    )
    assert is_same(record, decode_record("t", 3, encode_record(record)))


def test_credit_that_is_equal_in_a_step_is_stored_once_per_step() -> None:
    record = make_record(lengths=(100, 100))
    by_token = CreditRecord(
        "a", 1, record.tokens_per_step, record.versions, record.flags, advantages=np.arange(200, dtype="<f4")
    )
    by_step = CreditRecord(
        "a", 1, record.tokens_per_step, record.versions, record.flags, advantages=record.advantages
    )
    assert len(encode_record(by_token)) - len(encode_record(by_step)) == 4 * 198


def test_a_damaged_record_is_refused_by_name() -> None:
    with pytest.raises(EncodingError, match="credit of t in update 3 is damaged"):
        decode_record("t", 3, encode_record(make_record())[:-3])


def test_rows_by_step_and_by_token_fold_the_same_arrays() -> None:
    record = make_record()
    record.flags[4] |= CLIPPED
    steps, tokens = list_step_credit(record), list_token_credit(record)
    assert [row.advantage for row in steps] == [0.0, 1.0]
    assert [row.value for row in steps] == [0.0, 0.5]
    assert [(row.step, row.token) for row in tokens] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [row.is_clipped for row in tokens] == [False] * 4 + [True]
    assert steps[1].clip_share == pytest.approx(1 / 3)
    assert (steps[0].first_version, steps[0].last_version) == (0, 1)


def test_a_trajectory_has_one_record_per_update(tmp_path: Path) -> None:
    with CreditStore(tmp_path, 1.0) as store:
        store.write(1, [make_record("a"), make_record("b")])
        store.write(2, [make_record("a")])
        store.write(2, [make_record("a")])  # the same update again
        assert [record.update for record in read_credit(tmp_path, "a")] == [1, 2]
    assert is_same(read_credit(tmp_path, "b")[0], make_record("b"))
    assert [record.trajectory for record in read_update_credit(tmp_path, 1)] == ["a", "b"]


def test_a_rewound_store_has_nothing_after_the_checkpoint(tmp_path: Path) -> None:
    with CreditStore(tmp_path, 1.0) as store:
        for update in (1, 2, 3):
            store.write(update, [make_record(f"t{update}")])
        store.rewind(1)
        assert list_credit_updates(tmp_path) == [1]
        assert read_credit(tmp_path, "t2") == []


def test_the_oldest_updates_make_room(tmp_path: Path) -> None:
    big = make_record(lengths=(1000,))
    with CreditStore(tmp_path, 0.05) as store:
        for update in range(1, 31):
            store.write(update, [big])
        kept = list_credit_updates(tmp_path)
        assert kept == list(range(31 - len(kept), 31)) and 3 <= len(kept) <= 6
        store.write(31, [make_record(str(i), lengths=(1000,)) for i in range(10)])  # larger than the limit
        assert 31 not in list_credit_updates(tmp_path)
    assert os.path.getsize(tmp_path / "credit.db") < 3 * 50_000


def test_a_folder_without_credit_has_none(tmp_path: Path) -> None:
    assert read_credit(tmp_path, "a") == [] and list_credit_updates(tmp_path) == []
