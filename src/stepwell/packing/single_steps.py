"""Replay: every step is run as its own whole sequence, in blocks of equal length.

The fallback for models whose attention cannot be replaced, and the reference for packing. A block holds
sequences of one length only, so nothing is padded and each sequence is computed exactly as if it were alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepwell.packing.batch import Microbatch, Packed, StepTable, assemble_microbatch
from stepwell.packing.tree import IntArray

DEFAULT_BLOCK_TOKENS = 16384
"""Tokens of a block without a budget: enough to use a device fully, with little memory."""


def replay(packed: Packed) -> Packed:
    """The same steps as blocks of whole sequences of equal length, without sharing."""
    blocks = tuple(_iterate_blocks(packed.table, packed.token_budget or DEFAULT_BLOCK_TOKENS))
    return Packed(packed.table, blocks, packed.token_budget)


def _iterate_blocks(table: StepTable, token_budget: int) -> Iterator[Microbatch]:
    for length in np.unique(table.lengths):
        steps = np.flatnonzero(table.lengths == length)
        rows = max(1, token_budget // int(length))
        for start in range(0, steps.size, rows):
            yield _build_block(table, steps[start : start + rows], int(length))


def _build_block(table: StepTable, steps: IntArray, length: int) -> Microbatch:
    input_ids = np.stack([table.sequences[i] for i in steps]).astype(np.int64)
    first = table.prompt_lengths[steps] - 1
    starts = np.arange(steps.size) * length
    sites = [np.arange(start + begin, start + length) for start, begin in zip(starts, first, strict=True)]
    return assemble_microbatch(
        table,
        steps=steps,
        sites=sites,
        input_ids=input_ids,
        positions=np.broadcast_to(np.arange(length), input_ids.shape),
        origins=np.broadcast_to(steps[:, None], input_ids.shape),
        tree=None,
    )
