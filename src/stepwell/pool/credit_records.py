"""What an update made of one trajectory: value, advantage, ratio, clip and version, by step and by token.

    trainer ─► CreditRecord ─► encode_record ─► bytes     `credit_reading.py` reads them

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

HEAD = struct.Struct("<HBxII")
FORMAT = 1
VALUES, ADVANTAGES, PER_STEP, RATIOS = 1, 2, 4, 8
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


def encode_record(record: CreditRecord) -> bytes:
    """The arrays of a record as bytes; its trajectory and update are kept beside them."""
    what, parts = 0, [record.tokens_per_step, record.versions, record.flags]
    if record.values is not None and record.end_values is not None:
        what |= VALUES
        parts += [record.values, record.end_values]
    if record.advantages is not None:
        firsts = record.advantages[_find_first_tokens(record.tokens_per_step)]
        is_per_step = np.array_equal(np.repeat(firsts, record.tokens_per_step), record.advantages)
        what |= ADVANTAGES | (PER_STEP if is_per_step else 0)
        parts.append(firsts if is_per_step else record.advantages)
    if record.ratios is not None:
        what |= RATIOS
        parts.append(record.ratios)
    head = HEAD.pack(FORMAT, what, record.num_steps, len(record.flags))
    return b"".join([head, *(part.tobytes() for part in parts)])


def _find_first_tokens(tokens_per_step: IntArray) -> IntArray:
    firsts: IntArray = np.concatenate([[0], np.cumsum(tokens_per_step)[:-1]]).astype(np.int32)
    return firsts
