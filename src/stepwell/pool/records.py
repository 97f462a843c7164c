"""Steps as rows: what is new in a prompt is stored, the rest is taken from an earlier step.

A dialogue of n turns sends its whole history n times. A row therefore holds the record of a step
(`core.encoding`) with its prompt cut after the ids it shares with the prompt and action of an
earlier step of the same trajectory, its `base`. A writer knows what it wrote last (`Recent`); where
it does not (another process goes on, or it was restarted), the step is stored whole.

Invariants
* Reading gives back the step bit for bit, whatever it was cut against.
* A base is committed before, or together with, what refers to it, belongs to the same trajectory
  row, and never changes. Rows are removed with their whole trajectory only.
* Where the picture spans of the shared part differ, nothing is shared.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepwell.core import (
    Action,
    ArrayAction,
    ArrayState,
    ImageSpan,
    State,
    Step,
    TextAction,
    TextState,
    TokenAction,
    TokenState,
)
from stepwell.core.arrays import IntArray, common_prefix
from stepwell.core.encoding import decode_step, encode_step
from stepwell.core.errors import EncodingError

_NUM_BASES = 2  # last steps of a trajectory that a new one is held against
_MIN_SHARED = 16  # fewer shared ids than this are not worth a second row to read


@dataclass(frozen=True, slots=True)
class PrefixBase:
    """What a later prompt may continue: the ids and pictures up to the end of a step."""

    number: int
    ids: IntArray
    images: tuple[ImageSpan, ...]

    @classmethod
    def of(cls, number: int, step: Step) -> PrefixBase | None:
        if not isinstance(step.state, TokenState) or not isinstance(step.action, TokenAction):
            return None
        ids = np.concatenate([step.state.prompt_ids, step.action.action_ids])
        return cls(number, ids, step.state.images)


class RecentSteps:
    """The last steps of the trajectories written last. Thread-safe.

    Entries carry the trajectory's `seq`, which is never used again: a trajectory that was removed
    and begun anew under the same id is another one.
    """

    def __init__(self, capacity: int = 512) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[int, list[PrefixBase]]] = OrderedDict()

    def bases(self, id: str) -> tuple[int | None, list[PrefixBase]]:
        with self._lock:
            seq, bases = self._known.get(id, (None, []))
            return seq, list(bases)

    def remember(self, id: str, seq: int, bases: Iterable[PrefixBase]) -> None:
        with self._lock:
            known_seq, known = self._known.pop(id, (seq, []))
            merged = [*(known if known_seq == seq else []), *bases][-_NUM_BASES:]
            self._known[id] = (seq, merged)
            if len(self._known) > self._capacity:
                self._known.popitem(last=False)

    def forget(self, id: str) -> None:
        with self._lock:
            self._known.pop(id, None)


def encode_rows(
    steps: Mapping[int, Step], bases: Sequence[PrefixBase] = ()
) -> tuple[list[dict[str, Any]], list[PrefixBase]]:
    """Rows of numbered steps (without their trajectory), and what the steps after them may continue."""
    rows, known, new = [], list(bases), []
    for number, step in sorted(steps.items()):
        rows.append(_row(number, step, known[-_NUM_BASES:]))
        base = PrefixBase.of(number, step)
        if base is not None:
            known.append(base)
            new.append(base)
    return rows, new[-_NUM_BASES:]


def _row(number: int, step: Step, bases: Sequence[PrefixBase]) -> dict[str, Any]:
    base, shared = None, 0
    if isinstance(step.state, TokenState):
        for candidate in bases:
            size = _num_shared(step.state, candidate)
            if size >= max(_MIN_SHARED, shared):
                base, shared = candidate.number, size
    cut = step if base is None else replace(step, state=_cut(step.state, shared))
    return {
        "number": number,
        "base": base,
        "shared": shared,
        "first_version": step.policy_version.first,
        "last_version": step.policy_version.last,
        "reward": step.reward,
        "reward_parts": json.dumps(step.reward_parts) if step.reward_parts else None,
        "record": encode_step(cut),
    }


def _num_shared(state: TokenState, base: PrefixBase) -> int:
    """How many leading ids may be left out: not all of them, and no part of a picture."""
    shared = min(common_prefix(state.prompt_ids, base.ids), state.prompt_ids.size - 1)
    later = [span.start for span in state.images if span.start + span.length > shared]
    shared = min([shared, *later])
    return shared if _spans_within(state.images, shared) == _spans_within(base.images, shared) else 0


def _spans_within(spans: Iterable[ImageSpan], end: int) -> tuple[ImageSpan, ...]:
    return tuple(span for span in spans if span.start + span.length <= end)


def _cut(state: State, shared: int) -> TokenState:
    assert isinstance(state, TokenState)
    moved = tuple(replace(span, start=span.start - shared) for span in state.images if span.start >= shared)
    return TokenState(state.prompt_ids[shared:], moved)


class RowReader:
    """The steps of one trajectory from its rows, each decoded once and only when asked for."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = {row.number: row for row in rows}
        self._steps: dict[int, Step] = {}

    def numbers(self) -> list[int]:
        return sorted(self._rows)

    def step(self, number: int) -> Step:
        """The step as it was appended."""
        chain = []
        while number not in self._steps:  # not by recursion: a dialogue may have thousands of turns
            row = self._rows.get(number)
            if row is None:
                raise EncodingError(f"step {number} is missing, though a later one continues it")
            chain.append(row)
            if row.base is None:
                break
            number = row.base
        for row in reversed(chain):
            self._steps[row.number] = self._decoded(row)
        return self._steps[chain[0].number if chain else number]

    def _decoded(self, row: Any) -> Step:
        step = decode_step(bytes(row.record))
        if row.base is None:
            return step
        base = PrefixBase.of(row.base, self._steps[row.base])
        if base is None or base.ids.size < row.shared or not isinstance(step.state, TokenState):
            raise EncodingError(f"step {row.number} does not fit step {row.base}, which it continues")
        ids = np.concatenate([base.ids[: row.shared], step.state.prompt_ids])
        moved = tuple(replace(span, start=span.start + row.shared) for span in step.state.images)
        return replace(step, state=TokenState(ids, _spans_within(base.images, row.shared) + moved))


def encode_state(state: State | None) -> bytes | None:
    """A state alone, as a step whose action is empty."""
    if state is None:
        return None
    return encode_step(Step(state, _NO_ACTION[type(state)], np.zeros(0, np.float32)))


def decode_state(data: bytes | None) -> State | None:
    """What `encode_state` wrote."""
    return None if data is None else decode_step(bytes(data)).state


def images_of(state: State | None) -> set[str]:
    """Content hashes of the pictures a state shows."""
    return {span.image for span in state.images} if isinstance(state, TokenState) else set()


_NO_ACTION: dict[type[State], Action] = {
    TokenState: TokenAction(np.zeros(0, np.int32)),
    ArrayState: ArrayAction(np.zeros((0, 0), np.float32), 0),
    TextState: TextAction(),
}
