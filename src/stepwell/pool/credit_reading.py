"""What updates made of trajectories, read from `credit.db`: whole records, and rows by step and by token.

read_credit, read_update_credit ─► CreditRecord ─► list_step_credit, list_token_credit
"""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell.core.arrays import AnyArray, FloatArray
from stepwell.core.errors import EncodingError, InputError
from stepwell.pool.credit_records import (
    ADVANTAGES,
    FORMAT,
    HEAD,
    PER_STEP,
    RATIOS,
    VALUES,
    CreditRecord,
)
from stepwell.pool.credit_store import FILE_NAME


@dataclass(frozen=True, slots=True)
class StepCredit:
    """One row of credit by step. `advantage` and `ratio` are means over the step's tokens."""

    step: int
    num_tokens: int
    first_version: int
    last_version: int
    value: float | None
    end_value: float | None
    advantage: float | None
    ratio: float | None
    clip_share: float
    is_trained: bool


@dataclass(frozen=True, slots=True)
class TokenCredit:
    """One row of credit by token."""

    step: int
    token: int
    value: float | None
    advantage: float | None
    ratio: float | None
    is_clipped: bool
    is_trained: bool


def list_step_credit(record: CreditRecord) -> list[StepCredit]:
    """Credit by step: what a case study shows beside each decision."""
    values, advantages, ratios = (
        _split_or_none(record, row) for row in (record.values, record.advantages, record.ratios)
    )
    clipped, trained = record.split_tokens(record.is_clipped), record.split_tokens(record.is_trained)
    return [
        StepCredit(
            step=i,
            num_tokens=int(record.tokens_per_step[i]),
            first_version=int(record.versions[i, 0]),
            last_version=int(record.versions[i, 1]),
            value=None if values is None else float(values[i][0]),
            end_value=None if record.end_values is None else float(record.end_values[i]),
            advantage=None if advantages is None else float(advantages[i].mean()),
            ratio=None if ratios is None else float(ratios[i].mean()),
            clip_share=float(clipped[i].mean()),
            is_trained=bool(trained[i].any()),
        )
        for i in range(record.num_steps)
    ]


def list_token_credit(record: CreditRecord) -> list[TokenCredit]:
    """Credit by token, in order."""
    steps = np.repeat(np.arange(record.num_steps), record.tokens_per_step)
    places = np.concatenate([np.arange(count) for count in record.tokens_per_step])
    clipped, trained = record.is_clipped, record.is_trained
    return [
        TokenCredit(
            step=int(steps[i]),
            token=int(places[i]),
            value=None if record.values is None else float(record.values[i]),
            advantage=None if record.advantages is None else float(record.advantages[i]),
            ratio=None if record.ratios is None else float(record.ratios[i]),
            is_clipped=bool(clipped[i]),
            is_trained=bool(trained[i]),
        )
        for i in range(len(steps))
    ]


def read_credit(folder: Path, trajectory: str) -> list[CreditRecord]:
    """What the updates of a run made of a trajectory, the oldest first; empty if nothing is stored."""
    rows = _select(
        folder, "SELECT number, record FROM credit WHERE trajectory = ? ORDER BY number", trajectory
    )
    return [decode_record(trajectory, number, data) for number, data in rows]


def list_credit_updates(folder: Path) -> list[int]:
    """The updates whose credit is stored."""
    return [number for (number,) in _select(folder, "SELECT number FROM updates ORDER BY number")]


def read_update_credit(folder: Path, update: int) -> list[CreditRecord]:
    """The records of one update, in the order of their trajectories' ids."""
    rows = _select(folder, "SELECT trajectory, record FROM credit WHERE number = ?", update)
    return [decode_record(name, update, data) for name, data in rows]


def _select(folder: Path, query: str, *values: str | int) -> list[tuple]:  # type: ignore[type-arg]
    path = folder / FILE_NAME
    if not path.is_file():
        return []
    for how in ("mode=ro", "immutable=1"):  # the second for a folder without write permission
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, timeout=5.0)) as db:
                return db.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            failure = error
    if "no such table" in str(failure):  # a run that has just begun
        return []
    raise InputError(f"{path} cannot be read ({failure}); delete it to see the run without credit")


def decode_record(trajectory: str, update: int, data: bytes) -> CreditRecord:
    """What `encode_record` wrote."""
    try:
        form, what, num_steps, num_tokens = HEAD.unpack_from(data)
        if form != FORMAT:
            raise ValueError(f"format {form}")
        reader = _ArrayReader(data, HEAD.size)
        tokens_per_step, versions = reader.read("<i4", num_steps), reader.read("<i4", 2 * num_steps)
        flags = reader.read("u1", num_tokens)
        values = reader.read("<f4", num_tokens) if what & VALUES else None
        ends = reader.read("<f4", num_steps) if what & VALUES else None
        advantages = None
        if what & PER_STEP:
            advantages = np.repeat(reader.read("<f4", num_steps), tokens_per_step)
        elif what & ADVANTAGES:
            advantages = reader.read("<f4", num_tokens)
        ratios = reader.read("<f4", num_tokens) if what & RATIOS else None
    except (struct.error, ValueError) as error:
        raise EncodingError(
            f"the credit of {trajectory} in update {update} is damaged ({error}); delete credit.db"
        ) from error
    return CreditRecord(
        trajectory, update, tokens_per_step, versions.reshape(-1, 2), flags, values, ends, advantages, ratios
    )


class _ArrayReader:
    """Reads arrays one after another."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._at = data, start

    def read(self, dtype: str, count: int) -> AnyArray:
        array = np.frombuffer(self._data, dtype, count, self._at)
        self._at += array.nbytes
        return array


def _split_or_none(record: CreditRecord, row: FloatArray | None) -> list[AnyArray] | None:
    return None if row is None else record.split_tokens(row)
