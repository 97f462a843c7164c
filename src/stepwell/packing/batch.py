"""Packs steps for a model: `pack` and the packed batch.

A `Packed` batch is a list of microbatches. Each is a block of tokens [rows, columns] and the list of places
whose outputs are needed. There are two kinds:

* a tree (one row): all its steps merged by their prefixes, run with tree attention;
* a replay block (`replay(packed)`): whole sequences of one length, run without changes.

For both kinds, the outputs of step i are read at the last prompt token and at every action token. The first L
give the logprobs of its L action tokens; all L+1 give values. For a step with an empty action, only its one
value is computed.

Flat outputs are in step order: step by step, token by token. `Microbatch.*_indices` are the places of a
microbatch's outputs in the flat result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import ImageSpan, InputError, Step, TokenAction, TokenState
from stepwell.packing.budget import cut_by_budget
from stepwell.packing.tree import (
    IntArray,
    KeyArray,
    PrefixTree,
    count_shared_lengths,
    grow_tree,
    merge_short_runs,
    sort_sequences,
)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """The steps of a batch as arrays, in the order given."""

    sequences: tuple[npt.NDArray[Any], ...]
    keys: tuple[KeyArray, ...]
    prompt_lengths: IntArray
    action_lengths: IntArray
    temperatures: FloatArray
    images: tuple[tuple[ImageSpan, ...], ...] = ()
    """Per step, the images of its prompt."""

    @property
    def has_images(self) -> bool:
        return any(self.images)

    @property
    def lengths(self) -> IntArray:
        return self.prompt_lengths + self.action_lengths


@dataclass(frozen=True, eq=False)
class Microbatch:
    """Tokens to run once, and the mapping of their outputs to steps.

    `logit_sites` are distinct pairs of place and temperature. For each action token, `logit_rows` is the pair
    that predicts it and `targets` its id. `value_sites` are distinct places, `value_rows` one index into them
    per value. Places are counted row by row. `origins` is, for each token, one step of the table that
    contains it, at the depth given by `positions`. Per-step information about tokens (images, other
    positions) is looked up through it.
    """

    steps: IntArray
    input_ids: IntArray
    positions: IntArray
    origins: IntArray
    tree: PrefixTree | None
    logit_sites: IntArray
    temperatures: FloatArray
    logit_rows: IntArray
    targets: IntArray
    logprob_indices: IntArray
    value_sites: IntArray
    value_rows: IntArray
    value_indices: IntArray
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Device copies, kept for the next pass over the same tokens."""

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.size)


@dataclass(frozen=True, slots=True, eq=False)
class FlatAction(TokenAction):
    """An action that also contains observations, with their images.

    Places of `images` count from the first id of the prompt, like those of the state.
    """

    images: tuple[ImageSpan, ...] = ()


@dataclass(frozen=True, eq=False)
class Packed:
    """A batch of steps, ready to run. Made by `pack`."""

    table: StepTable
    microbatches: tuple[Microbatch, ...]
    token_budget: int | None

    def __len__(self) -> int:
        return len(self.table.sequences)

    @property
    def num_tokens(self) -> int:
        """Number of tokens that a model runs, over all microbatches."""
        return sum(microbatch.num_tokens for microbatch in self.microbatches)

    @property
    def num_step_tokens(self) -> int:
        """Number of tokens that a model would run if every step were run alone."""
        return int(self.table.lengths.sum())

    @property
    def action_lengths(self) -> list[int]:
        return [int(length) for length in self.table.action_lengths]

    @property
    def longest(self) -> int:
        """Length of the longest step, prompt and action together."""
        return int(self.table.lengths.max())

    @cached_property
    def highest_token_id(self) -> int:
        return max(int(sequence.max()) for sequence in self.table.sequences)


def pack(
    steps: Sequence[Step],
    *,
    token_budget: int | None = None,
    min_run: int = 1,
    units: Sequence[int] | None = None,
) -> Packed:
    """Merge steps into prefix trees of at most `token_budget` tokens each (one tree without a budget).

    Prefixes that share fewer than `min_run` tokens are not merged but computed separately. Trees with many
    small branches run faster that way. Steps with the same number in `units` stay in one tree if they fit.

    >>> packed = pack([Step.from_tokens([1, 2], [3]), Step.from_tokens([1, 2, 3, 4], [5])])
    >>> packed.num_tokens, packed.num_step_tokens
    (5, 8)
    """
    table = tabulate_steps(steps)
    check_budget(table.lengths, token_budget)
    order = sort_sequences(table.keys)
    shared = count_shared_lengths(table.keys, order)
    if min_run > 1:
        shared = merge_short_runs(shared, table.lengths[order], min_run)
    if units is not None and len(units) != len(order):
        raise InputError(f"units has {len(units)} numbers for {len(order)} steps; give one per step")
    numbers = None if units is None else np.asarray(units, dtype=np.int64)[order]
    ranges = cut_by_budget(table.lengths[order], shared, token_budget, numbers)
    microbatches = tuple(_build_tree_microbatch(table, order[a:b], shared[a:b]) for a, b in ranges)
    return Packed(table, microbatches, token_budget)


def tabulate_steps(steps: Iterable[Step]) -> StepTable:
    """Check the steps and lay them out as arrays."""
    steps = list(steps)
    if not steps:
        raise InputError("steps is empty: pack needs at least one step")
    image_numbers: dict[str, int] = {}
    sequences, keys = [], []
    for index, step in enumerate(steps):
        if not isinstance(step, Step):
            raise InputError(f"steps[{index}] is a {type(step).__name__}, not a Step")
        if not isinstance(step.state, TokenState) or not isinstance(step.action, TokenAction):
            raise InputError(
                f"steps[{index}] has an array state: prefix trees are made of tokens. "
                "Robot policies stack their arrays themselves"
            )
        sequence = np.concatenate([step.state.prompt_ids, step.action.action_ids])
        sequences.append(sequence)
        keys.append(_build_key(sequence, list_images(step), image_numbers))
    if image_numbers:
        keys = [key.astype(np.uint64) for key in keys]
    return StepTable(
        sequences=tuple(sequences),
        keys=tuple(keys),
        prompt_lengths=np.array([step.state.prompt_ids.size for step in steps], dtype=np.int64),  # type: ignore[union-attr]
        action_lengths=np.array([step.num_units for step in steps], dtype=np.int64),
        temperatures=np.array([step.sampling.logit_temperature for step in steps], dtype=np.float64),
        images=tuple(list_images(step) for step in steps),
    )


def list_images(step: Step) -> tuple[ImageSpan, ...]:
    """The images of a step, with places in prompt and action together."""
    assert isinstance(step.state, TokenState)
    return step.state.images + (step.action.images if isinstance(step.action, FlatAction) else ())


def _build_key(
    sequence: npt.NDArray[Any], images: tuple[ImageSpan, ...], image_numbers: dict[str, int]
) -> KeyArray:
    """Build the sort key of each token: two sequences share a token if its id and its image are equal."""
    if not images:
        return sequence.view(np.uint32) if sequence.dtype == np.int32 else sequence.astype(np.uint32)
    key = sequence.astype(np.uint64)
    for span in images:
        number = image_numbers.setdefault(span.image, len(image_numbers) + 1)
        key[span.start : span.start + span.length] += np.uint64(number << 32)
    return key


def check_budget(lengths: IntArray, token_budget: int | None) -> None:
    """Raise an error if the budget is too small for some step; steps are never split."""
    if token_budget is None:
        return
    if token_budget < 1:
        raise InputError(f"token_budget must be at least 1, got {token_budget}")
    longest = int(lengths.argmax())
    if lengths[longest] > token_budget:
        raise InputError(
            f"steps[{longest}] has {lengths[longest]} tokens and does not fit token_budget={token_budget}; "
            "steps are never split, so raise the budget or shorten the step"
        )


def _build_tree_microbatch(table: StepTable, order: IntArray, shared: IntArray) -> Microbatch:
    shared = shared.copy()
    shared[0] = 0
    tree, sites = grow_tree([table.sequences[i] for i in order], shared, table.prompt_lengths[order] - 1)
    origins = np.repeat(order, table.lengths[order] - shared)
    back = np.argsort(order, kind="stable")
    return assemble_microbatch(
        table,
        steps=order[back],
        sites=[sites[place] for place in back],
        input_ids=tree.token_ids[None],
        positions=tree.positions[None],
        origins=origins[None],
        tree=tree,
    )


def assemble_microbatch(
    table: StepTable,
    *,
    steps: IntArray,
    sites: list[IntArray],
    input_ids: IntArray,
    positions: IntArray,
    origins: IntArray,
    tree: PrefixTree | None,
) -> Microbatch:
    """Build a microbatch from its tokens and, for each of its steps, the L+1 places it reads."""
    lengths = table.action_lengths[steps]
    logprob_indices = _find_indices(table.action_lengths, steps)
    value_indices = _find_indices(table.action_lengths + 1, steps)
    all_sites = np.concatenate(sites)
    is_last = np.zeros(all_sites.size, dtype=bool)
    is_last[np.cumsum(lengths + 1) - 1] = True
    targets = [table.sequences[i][table.prompt_lengths[i] :] for i in steps]
    logit_sites, temperatures, logit_rows = _find_distinct(
        all_sites[~is_last], np.repeat(table.temperatures[steps], lengths)
    )
    value_sites, value_rows = np.unique(all_sites, return_inverse=True)
    return Microbatch(
        steps=steps,
        input_ids=input_ids,
        positions=positions,
        origins=origins,
        tree=tree,
        logit_sites=logit_sites,
        temperatures=temperatures,
        logit_rows=logit_rows,
        targets=np.concatenate(targets).astype(np.int64),
        logprob_indices=logprob_indices,
        value_sites=value_sites,
        value_rows=value_rows.astype(np.int64),
        value_indices=value_indices,
    )


def _find_indices(lengths: IntArray, steps: IntArray) -> IntArray:
    """Find the places of the values of `steps` in a flat array with `lengths[i]` values for step i."""
    starts = np.cumsum(lengths) - lengths
    chosen = lengths[steps]
    within = np.arange(int(chosen.sum())) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    return np.repeat(starts[steps], chosen) + within


def _find_distinct(sites: IntArray, temperatures: FloatArray) -> tuple[IntArray, FloatArray, IntArray]:
    """Find the distinct (site, temperature) pairs by rising site, and the pair of each element."""
    levels, level = np.unique(temperatures, return_inverse=True)
    pairs, rows = np.unique(sites * max(levels.size, 1) + level, return_inverse=True)
    size = max(levels.size, 1)
    return pairs // size, levels[pairs % size], rows.astype(np.int64)
