"""What an update made of one trajectory: value, advantage, ratio, clip and version, by step and by token.

    trainer ─► CreditRecord ─► encode_record ─► bytes ─► decode_record ─► list_step_credit, list_token_credit

A record is compact: at most 13 bytes per action token and 16 per step. Credit that is the same for all tokens
of a step is stored once per step.

Invariants
* Arrays are float32 as the trainer had them: what is read is what was computed, bit for bit.
* What an update did not have (values without a critic, ratios of demonstrations) is None, never a guess.
* `tokens_per_step` says how everything folds back: token i of step t is at `sum(tokens_per_step[:t]) + i`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from stepwell.core.arrays import AnyArray, FloatArray, IntArray
from stepwell.core.errors import EncodingError

_HEAD = struct.Struct("<HBxII")
_FORMAT = 1
_VALUES, _ADVANTAGES, _PER_STEP, _RATIOS = 1, 2, 4, 8
CLIPPED, TRAINED = 1, 2


@dataclass(frozen=True, eq=False, slots=True)
class CreditRecord:
    """One trajectory in one update. Token arrays are flat, in the order of steps.

    versions     [step, 2]  first and last policy version that sampled the step
    values       [token]    the critic before each action token; the first one of a step is V(s_t)
    end_values   [step]     the critic after the last action token
    advantages   [token]    as the loss used them: after whitening
    ratios       [token]    policy over the policy that sampled (or began the update), in the last pass, by
                            token, step or trajectory as the loss compares them
    flags        [token]    `CLIPPED`: beyond the clip range; `TRAINED`: the policy learnt from it
    """

    trajectory: str
    update: int
    tokens_per_step: IntArray
    versions: IntArray
    flags: AnyArray
    values: FloatArray | None = None
    end_values: FloatArray | None = None
    advantages: FloatArray | None = None
    ratios: FloatArray | None = None

    @property
    def num_steps(self) -> int:
        return len(self.tokens_per_step)

    @property
    def is_clipped(self) -> AnyArray:
        """[token] bool: the ratio is beyond the clip range, on the side where the loss stops."""
        return (self.flags & CLIPPED) > 0

    @property
    def is_trained(self) -> AnyArray:
        """[token] bool: the loss mask."""
        return (self.flags & TRAINED) > 0

    def split_tokens(self, row: AnyArray) -> list[AnyArray]:
        """One array per step of something that has one entry per token."""
        return np.split(row, np.cumsum(self.tokens_per_step)[:-1])


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


def encode_record(record: CreditRecord) -> bytes:
    """The arrays of a record as bytes; its trajectory and update are kept beside them."""
    what, parts = 0, [record.tokens_per_step, record.versions, record.flags]
    if record.values is not None and record.end_values is not None:
        what |= _VALUES
        parts += [record.values, record.end_values]
    if record.advantages is not None:
        firsts = record.advantages[_find_first_tokens(record.tokens_per_step)]
        is_per_step = np.array_equal(np.repeat(firsts, record.tokens_per_step), record.advantages)
        what |= _ADVANTAGES | (_PER_STEP if is_per_step else 0)
        parts.append(firsts if is_per_step else record.advantages)
    if record.ratios is not None:
        what |= _RATIOS
        parts.append(record.ratios)
    head = _HEAD.pack(_FORMAT, what, record.num_steps, len(record.flags))
    return b"".join([head, *(part.tobytes() for part in parts)])


def decode_record(trajectory: str, update: int, data: bytes) -> CreditRecord:
    """What `encode_record` wrote."""
    try:
        form, what, num_steps, num_tokens = _HEAD.unpack_from(data)
        if form != _FORMAT:
            raise ValueError(f"format {form}")
        reader = _ArrayReader(data, _HEAD.size)
        tokens_per_step, versions = reader.read("<i4", num_steps), reader.read("<i4", 2 * num_steps)
        flags = reader.read("u1", num_tokens)
        values = reader.read("<f4", num_tokens) if what & _VALUES else None
        ends = reader.read("<f4", num_steps) if what & _VALUES else None
        advantages = None
        if what & _PER_STEP:
            advantages = np.repeat(reader.read("<f4", num_steps), tokens_per_step)
        elif what & _ADVANTAGES:
            advantages = reader.read("<f4", num_tokens)
        ratios = reader.read("<f4", num_tokens) if what & _RATIOS else None
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


def _find_first_tokens(tokens_per_step: IntArray) -> IntArray:
    firsts: IntArray = np.concatenate([[0], np.cumsum(tokens_per_step)[:-1]]).astype(np.int32)
    return firsts


def _split_or_none(record: CreditRecord, row: FloatArray | None) -> list[AnyArray] | None:
    return None if row is None else record.split_tokens(row)
