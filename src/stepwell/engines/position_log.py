"""The position log: from which token, and at which rotary position, the key at each place was computed.

Every forward pass reports the positions that it looked up (`ForwardPass.positions`). The log writes them,
with the token ids of the pass, to the slots and places to which the plan of that pass writes keys. It lies on
the engine's device: captured graphs write it as they decode, and the operation that copies the keys of a
prefix copies it too. When a request leaves, its row is read once. The positions of everything that its action
depended on become one number (`core/position_marks.py`), which goes with the sample. The trainer compares it
with the positions that its own packing gives the same tokens.

Invariants
* A place that was not computed for the request in its slot has position -1, which no trainer gives; so has
  one whose key was computed from another token than the request's.
* What a pass has computed is noted without waiting for it; only a request that leaves reads its row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from stepwell.core.arrays import AnyArray
from stepwell.core.position_marks import mark_sequence


class PositionLog:
    """A table [row, 1 + axes, place] of token ids and positions. One axis, until a pass has more."""

    def __init__(self, num_rows: int, num_places: int, device: torch.device) -> None:
        self.table = torch.full((num_rows, 2, num_places), -1, dtype=torch.int32, device=device)

    def ensure_places(self, num_places: int) -> None:
        """Make room for so many places in every row."""
        rows, planes, have = self.table.shape
        if num_places > have:
            old, self.table = self.table, self.table.new_full((rows, planes, num_places), -1)
            self.table[:, :, :have] = old

    def note_tokens(
        self, slots: torch.Tensor, places: torch.Tensor, ids: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Note the ids [T] and positions [T] or [axes, T] of tokens whose keys a pass has written."""
        self._ensure_axes(1 if positions.ndim == 1 else len(positions))
        rows = torch.cat((ids[None], positions.reshape(-1, ids.numel()))).to(torch.int32)
        if len(rows) < self.table.shape[1]:
            rows = torch.cat((rows, rows[1:].expand(self.table.shape[1] - len(rows), -1)))
        self.table.transpose(1, 2).index_put_((slots, places), rows.t())

    def forget_rest(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Forget what lies behind the first `counts[i]` places of `slots[i]`."""
        device = self.table.device
        rows, kept = torch.tensor([slots, counts], device=device)
        is_old = torch.arange(self.table.shape[2], device=device) >= kept[:, None]
        self.table.index_copy_(0, rows, self.table[rows].masked_fill_(is_old[:, None], -1))

    def compute_mark(self, slot: int, ids: AnyArray) -> int:
        """Mark the positions of the first tokens of a slot, which are `ids` by the engine's table."""
        noted = self.table[slot, :, : len(ids)].cpu().numpy()
        return mark_sequence(np.where(noted[0] == ids, noted[1:], -1))

    def _ensure_axes(self, num_axes: int) -> None:
        if num_axes > self.table.shape[1] - 1:
            assert self.table.shape[1] == 2, f"positions with {num_axes} axes after some with several"
            self.table = torch.cat((self.table, self.table[:, 1:].expand(-1, num_axes - 1, -1)), dim=1)
