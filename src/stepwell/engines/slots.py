"""The slot table: who sits where, what is cached there, and who may reuse it.

Every slot has a row of tokens and a handful of numbers, kept in numpy columns, so that a
decoding step handles the whole batch with a few array operations. `length` counts the
tokens known for a slot (prompt and sampled), `computed` those whose keys and values are in
the store; a running request is ready to decode when exactly one is not.

When a request leaves, its slot keeps its cache and waits to be reused:
* The next turn of the same conversation, or a prompt that continues the whole slot, takes
  the slot over, cut back to the common prefix.
* Otherwise the least recently used slot is emptied, and a prefix shared with any other
  slot, busy or idle, is copied into it. So siblings of a group compute their prompt once,
  and one conversation never destroys another's cache while free slots remain.
* A prompt whose prefix is being computed by another request right now waits for it.

Tokens are compared as numbers. A token that stands for a picture is a negative number of its own
per picture (`sight.Sight.keyed`), so that nothing here knows of pictures and none is mixed up.

`drop_cache` forgets everything cached: no key computed under older weights is ever reused
by a new request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.core.arrays import AnyArray

MIN_SHARED = 8  # tokens below which copying a prefix is not worth its operations
MAX_COLUMNS_FIRST = 256


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes: its slot, how much of it is valid, and what to copy into it first."""

    slot: int
    num_cached: int
    copy_from: int | None

    def copies_like(self, other: Placement) -> bool:
        """Whether both copy the same tokens, so that one operation can serve both."""
        return (self.copy_from, self.num_cached) == (other.copy_from, other.num_cached)


class SlotTable:
    """Numpy columns over slots. Knows nothing of tensors or requests."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.tokens = np.zeros((num_slots, MAX_COLUMNS_FIRST), dtype=np.int32)
        self.logprobs = np.zeros((num_slots, MAX_COLUMNS_FIRST), dtype=np.float32)
        self.busy = np.zeros(num_slots, dtype=bool)
        self.length = np.zeros(num_slots, dtype=np.int64)
        self.computed = np.zeros(num_slots, dtype=np.int64)
        self.num_prompt = np.zeros(num_slots, dtype=np.int64)
        self.limit = np.zeros(num_slots, dtype=np.int64)
        self.temperature = np.ones(num_slots, dtype=np.float32)
        self.top_p = np.ones(num_slots, dtype=np.float32)
        self.seed = np.zeros(num_slots, dtype=np.int64)
        self.shift = np.zeros(num_slots, dtype=np.int64)  # of rotary positions against places
        self.ends = np.ones(num_slots, dtype=bool)  # whether the model's end tokens end it
        self.careful = np.zeros(num_slots, dtype=bool)  # whether it has stops of its own
        self.num_changes = 0  # grows whenever a row's content is replaced rather than continued
        self._stale = np.zeros(num_slots, dtype=bool)
        self._used = np.zeros(num_slots, dtype=np.int64)
        self._clock = 0
        self._conversation: list[str | None] = [None] * num_slots
        self._by_conversation: dict[str, int] = {}

    @property
    def num_busy(self) -> int:
        return int(np.count_nonzero(self.busy))

    def place(self, prompt: npt.NDArray[np.int32], conversation: str | None) -> Placement | None:
        """Where `prompt` shall go, or None when it should wait (for a slot, or for a prefix)."""
        own = self._by_conversation.get(conversation) if conversation is not None else None
        if own is not None and not self.busy[own]:
            cached = int(self.computed[own])
            if cached and self._shared(prompt, slice(own, own + 1))[0] >= min(cached, len(prompt) - 1):
                return Placement(own, min(cached, len(prompt) - 1), None)  # nobody can offer more
        if self.busy.all():
            return None
        shared = self._shared(prompt, slice(None))
        ready = np.where(self._stale, 0, np.minimum(shared, self.computed))
        coming = np.where(self.busy & ~self._stale, np.minimum(shared, self.length), 0)
        source = int(ready.argmax())
        if coming.max() - ready[source] >= MIN_SHARED:
            return None
        return self._target(conversation, own, source, int(ready[source]))

    def _target(self, conversation: str | None, own: int | None, source: int, shared: int) -> Placement:
        foreign = self._conversation[source] not in (None, conversation)
        continues = shared > 0 and shared == self.computed[source] and not foreign
        if not self.busy[source] and (source == own or continues):
            return Placement(source, shared, None)
        if own is not None and not self.busy[own]:
            slot = own
        else:
            slot = int(np.where(self.busy, np.iinfo(np.int64).max, self._used).argmin())
        if slot == source:
            return Placement(slot, shared, None)
        return Placement(slot, shared, source) if shared >= MIN_SHARED else Placement(slot, 0, None)

    def _shared(self, prompt: npt.NDArray[np.int32], rows: slice) -> npt.NDArray[np.int64]:
        """Tokens each slot has in common with the prompt, never its last (whose logits are wanted)."""
        width = min(len(prompt) - 1, self.tokens.shape[1])
        if width == 0:
            return np.zeros(len(self.length[rows]), dtype=np.int64)
        differs = self.tokens[rows, :width] != prompt[:width]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), width)
        return np.minimum(first, self.length[rows])

    def occupy(self, slot: int, prompt: npt.NDArray[np.int32], limit: int, num_cached: int) -> None:
        """Seat a request in an idle slot."""
        assert not self.busy[slot]
        self.num_changes += 1
        self._widen(limit)
        self._forget_conversation(slot)
        self.tokens[slot, : len(prompt)] = prompt
        self.busy[slot] = True
        self._stale[slot] = False
        self.length[slot] = self.num_prompt[slot] = len(prompt)
        self.computed[slot] = num_cached
        self.limit[slot] = limit

    def release(self, slot: int, conversation: str | None) -> None:
        """The request has left; keep what is cached for whoever continues."""
        assert self.busy[slot]
        self.busy[slot] = False
        self._clock += 1
        self._used[slot] = self._clock
        if self._stale[slot]:
            self._empty(slot)
        elif conversation is not None:
            before = self._by_conversation.pop(conversation, None)
            if before is not None:
                self._conversation[before] = None
            self._by_conversation[conversation] = slot
            self._conversation[slot] = conversation

    def drop_cache(self, recompute: bool) -> None:
        """New weights: idle slots are emptied; busy ones go on, or compute everything again."""
        self.num_changes += 1
        for slot in np.flatnonzero(~self.busy):
            self._empty(int(slot))
        if recompute:
            self.computed[self.busy] = 0
        else:
            self._stale |= self.busy & (self.computed > 0)

    def action(self, slot: int) -> tuple[AnyArray, AnyArray]:
        """Copies of the sampled tokens and their logprobs."""
        span = slice(int(self.num_prompt[slot]), int(self.length[slot]))
        return self.tokens[slot, span].copy(), self.logprobs[slot, span].copy()

    def _empty(self, slot: int) -> None:
        self._forget_conversation(slot)
        self._stale[slot] = False
        self.length[slot] = self.computed[slot] = 0
        self._used[slot] = 0

    def _forget_conversation(self, slot: int) -> None:
        conversation = self._conversation[slot]
        if conversation is not None:
            self._by_conversation.pop(conversation, None)
            self._conversation[slot] = None

    def _widen(self, columns: int) -> None:
        have = self.tokens.shape[1]
        if columns > have:
            more = ((0, 0), (0, max(columns, 2 * have) - have))
            self.tokens, self.logprobs = np.pad(self.tokens, more), np.pad(self.logprobs, more)
