"""The slot table: which request is in which slot, what is cached there, and who may reuse it.

Every slot has a row of tokens and a few numbers, in numpy columns, so that a decoding step
handles the whole batch with a few array operations. `length` counts the known tokens of a
slot (prompt and sampled), `computed` those whose keys and values are in the store. A running
request is ready to decode when exactly one is missing.

When a request leaves, its slot keeps its cache for reuse:
* The next turn of the same conversation, or a prompt that continues the whole slot, takes
  the slot over, cut back to the common prefix.
* Otherwise the least recently used slot is emptied, and a prefix shared with any other
  slot, busy or idle, is copied into it. So siblings of a group compute their prompt once,
  and one conversation never destroys another's cache while free slots remain.
* A prompt whose prefix is just being computed by another request waits for it.

Tokens are compared as numbers. A token of an image is a negative number that is unique to that
image (`ImageFeatures.encode_prompt`), so this module needs to know nothing about images.

`drop_cache` drops everything cached: a new request never reuses a key computed under older
weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.core.arrays import AnyArray

MIN_SHARED = 8  # tokens below which copying a prefix is not worth its operations
MAX_COLUMNS_FIRST = 256


@dataclass(frozen=True, slots=True)
class SlotPlacement:
    """The slot of a request, how much of its cache is valid, and the slot to copy from first."""

    slot: int
    num_cached: int
    copy_from: int | None


class SlotTable:
    """Numpy columns over slots. Independent of tensors and requests."""

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
        self.shift = np.zeros(num_slots, dtype=np.int64)  # rotary position minus place
        self.stops_at_end = np.ones(num_slots, dtype=bool)  # whether it ends at the model's end tokens
        self.has_stops = np.zeros(num_slots, dtype=bool)  # whether the request has stops of its own
        self.num_changes = 0  # grows whenever a row's content is replaced rather than continued
        self._stale = np.zeros(num_slots, dtype=bool)
        self._used = np.zeros(num_slots, dtype=np.int64)
        self._clock = 0
        self._conversation: list[str | None] = [None] * num_slots
        self._by_conversation: dict[str, int] = {}

    def place_prompt(self, prompt: npt.NDArray[np.int32], conversation: str | None) -> SlotPlacement | None:
        """Choose the slot of `prompt`; None if it should wait (for a slot, or for a prefix)."""
        own = self._by_conversation.get(conversation) if conversation is not None else None
        if own is not None and not self.busy[own]:
            cached = int(self.computed[own])
            if cached and self._count_shared(prompt, slice(own, own + 1))[0] >= min(cached, len(prompt) - 1):
                return SlotPlacement(own, min(cached, len(prompt) - 1), None)  # nobody can offer more
        if self.busy.all():
            return None
        used = slice(self._count_used())
        shared, stale = self._count_shared(prompt, used), self._stale[used]
        ready = np.where(stale, 0, np.minimum(shared, self.computed[used]))
        coming = np.where(self.busy[used] & ~stale, shared, 0)
        source = int(ready.argmax())
        if coming.max() - ready[source] >= MIN_SHARED:
            return None
        return self._choose_target(conversation, own, source, int(ready[source]))

    def _choose_target(
        self, conversation: str | None, own: int | None, source: int, shared: int
    ) -> SlotPlacement:
        foreign = self._conversation[source] not in (None, conversation)
        continues = shared > 0 and shared == self.computed[source] and not foreign
        if not self.busy[source] and (source == own or continues):
            return SlotPlacement(source, shared, None)
        if own is not None and not self.busy[own]:
            slot = own
        else:
            slot = int(np.where(self.busy, np.iinfo(np.int64).max, self._used).argmin())
        if slot == source:
            return SlotPlacement(slot, shared, None)
        return SlotPlacement(slot, shared, source) if shared >= MIN_SHARED else SlotPlacement(slot, 0, None)

    def _count_used(self) -> int:
        """Return how far the table is used, at least one row: those behind hold nothing to compare."""
        used = np.flatnonzero(self.length)
        return int(used[-1]) + 1 if used.size else 1

    def _count_shared(self, prompt: npt.NDArray[np.int32], rows: slice) -> npt.NDArray[np.int64]:
        """Count the leading tokens each slot shares with the prompt, without the prompt's last one."""
        width = min(len(prompt) - 1, self.tokens.shape[1])
        if width == 0:
            return np.zeros(len(self.length[rows]), dtype=np.int64)
        rows_tokens = self.tokens[rows]
        differs = np.ones((len(rows_tokens), width + 1), dtype=bool)
        np.not_equal(rows_tokens[:, :width], prompt[:width], out=differs[:, :width])
        first: npt.NDArray[np.int64] = differs.argmax(axis=1)
        return np.minimum(first, self.length[rows])

    def occupy_slot(self, slot: int, prompt: npt.NDArray[np.int32], limit: int, num_cached: int) -> None:
        """Put a request into an idle slot."""
        assert not self.busy[slot]
        self.num_changes += 1
        self._widen_columns(limit)
        self._forget_conversation(slot)
        self.tokens[slot, : len(prompt)] = prompt
        self.busy[slot] = True
        self._stale[slot] = False
        self.length[slot] = self.num_prompt[slot] = len(prompt)
        self.computed[slot] = num_cached
        self.limit[slot] = limit

    def release_slot(self, slot: int, conversation: str | None) -> None:
        """Free the slot of a request that has left, and keep its cache for reuse."""
        assert self.busy[slot]
        self.busy[slot] = False
        self._clock += 1
        self._used[slot] = self._clock
        if self._stale[slot]:
            self._clear_slot(slot)
        elif conversation is not None:
            before = self._by_conversation.pop(conversation, None)
            if before is not None:
                self._conversation[before] = None
            self._by_conversation[conversation] = slot
            self._conversation[slot] = conversation

    def drop_cache(self, recompute: bool) -> None:
        """Empty idle slots after a weight change; busy ones continue, or compute everything again."""
        self.num_changes += 1
        for slot in np.flatnonzero(~self.busy):
            self._clear_slot(int(slot))
        if recompute:
            self.computed[self.busy] = 0
        else:
            self._stale |= self.busy & (self.computed > 0)

    def read_action(self, slot: int) -> tuple[AnyArray, AnyArray]:
        """Return copies of the sampled tokens and their logprobs."""
        span = slice(int(self.num_prompt[slot]), int(self.length[slot]))
        return self.tokens[slot, span].copy(), self.logprobs[slot, span].copy()

    def _clear_slot(self, slot: int) -> None:
        self._forget_conversation(slot)
        self._stale[slot] = False
        self.length[slot] = self.computed[slot] = 0
        self._used[slot] = 0

    def _forget_conversation(self, slot: int) -> None:
        conversation = self._conversation[slot]
        if conversation is not None:
            self._by_conversation.pop(conversation, None)
            self._conversation[slot] = None

    def _widen_columns(self, columns: int) -> None:
        have = self.tokens.shape[1]
        if columns > have:
            more = ((0, 0), (0, max(columns, 2 * have) - have))
            self.tokens, self.logprobs = np.pad(self.tokens, more), np.pad(self.logprobs, more)
