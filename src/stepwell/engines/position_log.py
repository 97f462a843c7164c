"""The position log: at which rotary position the key at each place of each slot was computed.

Every forward pass reports the positions that it looked up (`ForwardPass.positions`), and the log keeps them
beside the keys: written where keys are written, copied where prefixes are copied. When a request leaves, the
positions of everything that its action depended on become one number (`core/position_marks.py`), which goes
with the sample. The trainer compares it with the positions that its own packing gives the same tokens.

Invariants
* What was computed later at a place is noted later: whatever reads or writes the table takes the positions
  that are still arriving first.
* Positions of a prefill on a GPU arrive while the pass runs. Most are read after a decoding step, which has
  waited for the device already; only a copy of a prefix and a request that leaves without one wait for them.
* A place that was never computed has position -1, which no trainer gives.
* On devices that are not in `CHECKED_DEVICES` nothing is noted, and marks are None.
"""

from __future__ import annotations

import numpy as np
import torch

from stepwell.core.arrays import AnyArray
from stepwell.core.position_marks import mark_sequence

CHECKED_DEVICES = ("cpu",)  # add "cuda" once parity_faults.py has run there with it
FIRST_PLACES = 256
_Run = tuple[AnyArray, AnyArray, AnyArray, torch.Tensor]


class PositionLog:
    """Positions [axes, slot, place] on the host. One axis, until a pass has more."""

    def __init__(self, num_slots: int, device: torch.device) -> None:
        self.is_kept = device.type in CHECKED_DEVICES
        self._device = device
        self._positions = np.full((1, num_slots, FIRST_PLACES), -1, dtype=np.int32)
        self._arriving: list[_Run] = []

    def add_runs(self, slots: AnyArray, starts: AnyArray, counts: AnyArray, positions: torch.Tensor) -> None:
        """Note the positions [T] or [axes, T] of runs of `counts` tokens from place `starts` in `slots`."""
        if not self.is_kept:
            return
        arriving = positions.to("cpu", non_blocking=True)
        self._arriving.append((slots, starts, counts, arriving))
        if self._device.type == "cpu":
            self._read_arriving()

    def add_tokens(self, slots: AnyArray, places: AnyArray, positions: AnyArray) -> None:
        """Note the positions [T] of one token in each slot."""
        if not self.is_kept:
            return
        self._read_arriving()  # they may be of a request that had one of these slots before
        self._ensure_room(int(places.max()) + 1, 1)
        self._positions[:, slots, places] = positions

    def copy_prefixes(self, sources: list[int], targets: list[int], num_tokens: int) -> None:
        """Copy the first places of each source to its target. All are read before any is written."""
        if not self.is_kept:
            return
        self._read_arriving()
        self._positions[:, targets, :num_tokens] = self._positions[:, sources, :num_tokens]

    def compute_mark(self, slot: int, num_tokens: int) -> int | None:
        """Mark the positions of the first tokens of a slot; None if they are not kept."""
        if not self.is_kept:
            return None
        self._read_arriving()
        return mark_sequence(self._positions[:, slot, :num_tokens])

    def _read_arriving(self) -> None:
        if self._arriving and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        for slots, starts, counts, tensor in self._arriving:
            positions = np.atleast_2d(tensor.numpy())
            self._ensure_room(int((starts + counts).max()), len(positions))
            offset = 0
            for slot, start, count in zip(slots.tolist(), starts.tolist(), counts.tolist(), strict=True):
                self._positions[:, slot, start : start + count] = positions[:, offset : offset + count]
                offset += count
        self._arriving.clear()

    def _ensure_room(self, num_places: int, num_axes: int) -> None:
        axes, _, have = self._positions.shape
        if num_places > have:
            more = max(num_places, 2 * have) - have
            self._positions = np.pad(self._positions, ((0, 0), (0, 0), (0, more)), constant_values=-1)
        if num_axes > axes:
            assert axes == 1, f"positions with {num_axes} axes after some with {axes}"
            self._positions = np.repeat(self._positions, num_axes, axis=0)
