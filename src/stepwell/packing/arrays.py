"""Packs array steps for robot policies: `pack_arrays` and the packed batch.

The counterpart of `pack` for steps whose state is named arrays. There are no prefixes to share: states are
stacked, and a microbatch is `micro_batch` of them in the order given. Each distinct instruction is listed
once.

A step has one of these kinds of action:

    sampled tokens    draws["bins"] [n, D]           n * D units
    sampled flow      draws["chain"] [K + 1, C, D]   K units, the transitions
    given             no draws (demonstrations)      n * D units
    none              num_units 0                    value only

`chunk` holds the n executed actions. If an episode ended inside a chunk, n is less than the policy's C.
Actions that were not executed are not units (tokens) and not part of a transition's logprob (flow).

Invariants
* Flat outputs are in step order. A microbatch is a run of steps, so its outputs are a contiguous range.
* `seeds` differ for every step and depend only on the batch's seed and the step's index. Draws during
  training therefore do not depend on how the batch was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import ArrayAction, ArrayState, InputError, Step
from stepwell.core.arrays import AnyArray
from stepwell.packing.tree import IntArray

BINS, CHAIN = "bins", "chain"
_KINDS = (BINS, CHAIN)


@dataclass(frozen=True, eq=False)
class ArrayMicrobatch:
    """States to run once. The fields from `chunks` to `seeds` have one row per step with an action
    (`acting`)."""

    steps: IntArray
    arrays: dict[str, AnyArray]
    instructions: tuple[str, ...]
    instruction_rows: IntArray
    acting: IntArray
    kind: str | None
    chunks: AnyArray
    num_actions: IntArray
    draws: AnyArray | None
    temperatures: npt.NDArray[np.float64]
    seeds: npt.NDArray[np.uint64]
    action_lengths: IntArray
    logprob_indices: IntArray
    value_indices: IntArray
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)
    """Device copies, kept for the next pass over the same states."""

    @property
    def num_states(self) -> int:
        return int(self.action_lengths.size)


@dataclass(frozen=True, eq=False)
class PackedArrays:
    """A batch of array steps, ready to run. Made by `pack_arrays`."""

    microbatches: tuple[ArrayMicrobatch, ...]
    action_lengths: list[int]

    def __len__(self) -> int:
        return len(self.action_lengths)

    @property
    def num_tokens(self) -> int:
        """Number of states that a model runs, the counterpart of a language policy's tokens."""
        return len(self)


def pack_arrays(steps: Sequence[Step], *, micro_batch: int | None = None, seed: int = 0) -> PackedArrays:
    """Stack array steps into microbatches of at most `micro_batch` states (by default a single one).

    >>> state = ArrayState({"proprio": np.zeros(3, np.float32)}, "lift the lid")
    >>> step = Step(state, ArrayAction(np.zeros((2, 4), np.float32), 8), np.zeros(0, np.float32))
    >>> packed = pack_arrays([step, step, step], micro_batch=2)
    >>> len(packed.microbatches), packed.action_lengths
    (2, [8, 8, 8])
    """
    steps = list(steps)
    if not steps:
        raise InputError("steps is empty: pack_arrays needs at least one step")
    if micro_batch is not None and micro_batch < 1:
        raise InputError(f"micro_batch must be at least 1, got {micro_batch}")
    for index, step in enumerate(steps):
        _check_step(index, step)
    lengths = [step.num_units for step in steps]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    seeds = np.random.default_rng([seed, len(steps)]).integers(2**63, size=len(steps), dtype=np.uint64)
    size = micro_batch or len(steps)
    microbatches = tuple(
        _build_microbatch(steps[first : first + size], first, starts, seeds)
        for first in range(0, len(steps), size)
    )
    return PackedArrays(microbatches, lengths)


def _check_step(index: int, step: Step) -> None:
    if not isinstance(step.state, ArrayState) or not isinstance(step.action, ArrayAction):
        raise InputError(f"steps[{index}] has a token state; robot policies take named arrays (use `pack`)")
    chunk, draws = step.action.chunk, step.action.draws
    if step.num_units == 0:
        return
    if chunk.shape[0] == 0:
        raise InputError(f"steps[{index}] has {step.num_units} units, but its chunk holds no action")
    expected = draws[CHAIN].shape[0] - 1 if CHAIN in draws else chunk.size
    if step.num_units != expected:
        raise InputError(
            f"steps[{index}].action.num_units is {step.num_units}, but its draws make {expected} units"
        )
    if BINS in draws and draws[BINS].shape != chunk.shape:
        raise InputError(
            f"steps[{index}].action.draws['bins'] has shape {draws[BINS].shape}, its chunk {chunk.shape}"
        )


def _build_microbatch(
    steps: Sequence[Step], first: int, starts: IntArray, seeds: npt.NDArray[np.uint64]
) -> ArrayMicrobatch:
    last = first + len(steps)
    numbers: dict[str, int] = {}
    states: list[ArrayState] = [step.state for step in steps]  # type: ignore[misc]
    rows = [numbers.setdefault(state.instruction, len(numbers)) for state in states]
    acting = [i for i, step in enumerate(steps) if step.num_units]
    actions: list[ArrayAction] = [steps[i].action for i in acting]  # type: ignore[misc]
    kind = _find_kind(actions)
    longest = max((action.chunk.shape[0] for action in actions), default=0)
    temperatures = [steps[i].sampling.logit_temperature for i in acting]
    return ArrayMicrobatch(
        steps=np.arange(first, last),
        arrays=stack_states(states),
        instructions=tuple(numbers),
        instruction_rows=np.array(rows, np.int64),
        acting=np.array(acting, np.int64),
        kind=kind,
        chunks=_stack_rows([_repeat_last(action.chunk, longest) for action in actions]),
        num_actions=np.array([action.chunk.shape[0] for action in actions], np.int64),
        draws=None
        if kind is None
        else _stack_rows([_select_draws(action, kind, longest) for action in actions]),
        temperatures=np.array(temperatures, np.float64),
        seeds=seeds[first:last][acting],
        action_lengths=np.diff(starts[first : last + 1]),
        logprob_indices=np.arange(starts[first], starts[last]),
        value_indices=np.arange(starts[first] + first, starts[last] + last),
    )


def stack_states(states: Sequence[ArrayState]) -> dict[str, AnyArray]:
    """Stack each named array of all states; states with different arrays are an error."""
    names = states[0].arrays.keys()
    for index, state in enumerate(states):
        if state.arrays.keys() != names:
            raise InputError(
                f"states[{index}] shows {', '.join(state.arrays)}, the first one {', '.join(names)}; "
                "steps of one batch must come from environments with the same arrays"
            )
    try:
        return {name: np.stack([state.arrays[name] for state in states]) for name in names}
    except ValueError as error:
        raise InputError(f"states of one batch have arrays of different shapes: {error}") from error


def _find_kind(actions: Sequence[ArrayAction]) -> str | None:
    """Find how all actions were drawn; None if they were given, or if there are none."""
    kinds = {next((kind for kind in _KINDS if kind in action.draws), None) for action in actions}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind or "given" for kind in kinds))
        raise InputError(f"one batch contains actions of several kinds ({names}); train on them separately")
    return kinds.pop() if kinds else None


def _select_draws(action: ArrayAction, kind: str, longest: int) -> AnyArray:
    return action.draws[kind] if kind == CHAIN else _repeat_last(action.draws[kind], longest)


def _repeat_last(rows: AnyArray, length: int) -> AnyArray:
    """Repeat the last row up to `length`; the repeated rows are never used."""
    return rows if rows.shape[0] == length else np.concatenate([rows, *[rows[-1:]] * (length - len(rows))])


def _stack_rows(items: Sequence[AnyArray]) -> AnyArray:
    if not items:
        return np.zeros((0, 0, 0), np.float32)
    if len({item.shape for item in items}) > 1:
        shapes = ", ".join(sorted({str(item.shape) for item in items}))
        raise InputError(f"actions of one batch have different shapes ({shapes}); they need one policy")
    return np.stack(items)
