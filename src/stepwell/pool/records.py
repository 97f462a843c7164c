"""Steps as rows: a row stores what is new in a prompt and refers to an earlier step for the rest.

A dialogue of n turns sends its whole history n times. A row therefore holds the record of a step
(`core.encoding`) without the leading ids that its prompt shares with the prompt and action of an
earlier step of the same trajectory, its `base`. A writer remembers what it wrote last
(`RecentSteps`). If it does not know (after a restart, or in another process), it stores the full step.

Invariants
* Reading returns the step bit for bit, whatever its base.
* A base is committed before, or together with, the rows that refer to it. It belongs to the same
  trajectory row and never changes. Rows are removed only with their whole trajectory.
* If the image spans of the shared part differ, nothing is shared.
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
from stepwell.core.arrays import IntArray, count_common_prefix
from stepwell.core.encoding import decode_step, encode_step
from stepwell.core.errors import EncodingError

_NUM_RECENT = 512  # trajectories
_NUM_BASES = 2  # how many last steps of a trajectory a new step is compared with
_MIN_SHARED = 16  # fewer shared ids than this are not worth a second row to read


@dataclass(frozen=True, slots=True)
class PrefixBase:
    """What a later prompt may continue: the ids and images up to the end of a step."""

    number: int
    ids: IntArray
    images: tuple[ImageSpan, ...]

    @classmethod
    def from_step(cls, number: int, step: Step) -> PrefixBase | None:
        if not isinstance(step.state, TokenState) or not isinstance(step.action, TokenAction):
            return None
        ids = np.concatenate([step.state.prompt_ids, step.action.action_ids])
        return cls(number, ids, step.state.images)


class RecentSteps:
    """The last steps of recently written trajectories. Thread-safe.

    Entries have the trajectory's `seq`, which is never reused: a trajectory that was removed and begun
    again with the same id is another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[int, list[PrefixBase]]] = OrderedDict()

    def get_bases(self, id: str) -> tuple[int | None, list[PrefixBase]]:
        with self._lock:
            seq, bases = self._known.get(id, (None, []))
            return seq, list(bases)

    def remember(self, id: str, seq: int, bases: Iterable[PrefixBase]) -> None:
        with self._lock:
            known_seq, known = self._known.pop(id, (seq, []))
            merged = [*(known if known_seq == seq else []), *bases][-_NUM_BASES:]
            self._known[id] = (seq, merged)
            if len(self._known) > _NUM_RECENT:
                self._known.popitem(last=False)

    def forget(self, id: str) -> None:
        with self._lock:
            self._known.pop(id, None)


def encode_rows(
    steps: Mapping[int, Step], bases: Sequence[PrefixBase] = ()
) -> tuple[list[dict[str, Any]], list[PrefixBase]]:
    """Rows of numbered steps (without their trajectory), and the bases for later steps."""
    rows, known, new = [], list(bases), []
    for number, step in sorted(steps.items()):
        rows.append(_encode_row(number, step, known[-_NUM_BASES:]))
        base = PrefixBase.from_step(number, step)
        if base is not None:
            known.append(base)
            new.append(base)
    return rows, new[-_NUM_BASES:]


def _encode_row(number: int, step: Step, bases: Sequence[PrefixBase]) -> dict[str, Any]:
    base, shared = None, 0
    if isinstance(step.state, TokenState):
        for candidate in bases:
            size = _count_shared(step.state, candidate)
            if size >= max(_MIN_SHARED, shared):
                base, shared = candidate.number, size
    cut = step if base is None else replace(step, state=_cut_state(step.state, shared))
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


def _count_shared(state: TokenState, base: PrefixBase) -> int:
    """How many leading ids can be left out: not all of them, and no part of an image."""
    shared = min(count_common_prefix(state.prompt_ids, base.ids), state.prompt_ids.size - 1)
    later = [span.start for span in state.images if span.start + span.length > shared]
    shared = min([shared, *later])
    return shared if _select_spans(state.images, shared) == _select_spans(base.images, shared) else 0


def _select_spans(spans: Iterable[ImageSpan], end: int) -> tuple[ImageSpan, ...]:
    return tuple(span for span in spans if span.start + span.length <= end)


def _cut_state(state: State, shared: int) -> TokenState:
    assert isinstance(state, TokenState)
    moved = tuple(replace(span, start=span.start - shared) for span in state.images if span.start >= shared)
    return TokenState(state.prompt_ids[shared:], moved)


class RowReader:
    """Decodes the steps of one trajectory from its rows, each once and only when needed."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = {row.number: row for row in rows}
        self._steps: dict[int, Step] = {}

    def list_numbers(self) -> list[int]:
        return sorted(self._rows)

    def get_step(self, number: int) -> Step:
        """The step as it was appended."""
        chain = []
        while number not in self._steps:  # not recursive: a dialogue may have thousands of turns
            row = self._rows.get(number)
            if row is None:
                raise EncodingError(f"step {number} is missing, but a later step continues it")
            chain.append(row)
            if row.base is None:
                break
            number = row.base
        for row in reversed(chain):
            self._steps[row.number] = self._decode_row(row)
        return self._steps[chain[0].number if chain else number]

    def _decode_row(self, row: Any) -> Step:
        step = decode_step(bytes(row.record))
        if row.base is None:
            return step
        base = PrefixBase.from_step(row.base, self._steps[row.base])
        if base is None or base.ids.size < row.shared or not isinstance(step.state, TokenState):
            raise EncodingError(f"step {row.number} does not match step {row.base}, which it continues")
        ids = np.concatenate([base.ids[: row.shared], step.state.prompt_ids])
        moved = tuple(replace(span, start=span.start + row.shared) for span in step.state.images)
        return replace(step, state=TokenState(ids, _select_spans(base.images, row.shared) + moved))


def encode_state(state: State | None) -> bytes | None:
    """A state alone, as a step whose action is empty."""
    if state is None:
        return None
    return encode_step(Step(state, _NO_ACTION[type(state)], np.zeros(0, np.float32)))


def decode_state(data: bytes | None) -> State | None:
    """What `encode_state` wrote."""
    return None if data is None else decode_step(bytes(data)).state


def find_images(state: State | None) -> set[str]:
    """Content hashes of the images in a state."""
    return {span.image for span in state.images} if isinstance(state, TokenState) else set()


_NO_ACTION: dict[type[State], Action] = {
    TokenState: TokenAction(np.zeros(0, np.int32)),
    ArrayState: ArrayAction(np.zeros((0, 0), np.float32), 0),
    TextState: TextAction(),
}
