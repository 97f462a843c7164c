"""Keys and values of every slot, layer by layer, in memory that the engine owns.

A slot is one row of storage for one sequence: `keys(layer)[slot, head, position]`.
Rows never move, so a sequence keeps its slot from admission to eviction and a decoding
step writes one position per row. Grouped heads are stored once and never expanded.

Invariants
* Storage starts as zeros and only holds finite values: a masked position has weight zero,
  and zero times a leftover NaN would still be NaN.
* A layer is allocated at its first write, with the head count and width of that write.
* On CPU the length grows by doubling up to `max_length` (untouched pages cost nothing).
  On CUDA all of it is allocated at once, because captured graphs keep its addresses.
* There is one more row than slots: captured graphs pad their batch with it.
* `positions` knows from which token and at which position each key was computed, and follows every copy.
* Prefixes that requests share are copied between rows (`PrefixCopies`), never recomputed.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from stepwell.core.errors import ConfigError
from stepwell.engines.position_log import PositionLog

FIRST_LENGTH = 256
MAX_COPIED_TOKENS = 65_536  # of one operation: copies are gathered first, which takes memory


class KVStore:
    """Slot storage for all layers of one model."""

    def __init__(self, num_slots: int, max_length: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_slots = num_slots
        self.max_length = max_length
        self.device = device
        self.dtype = dtype
        self.length = max_length if device.type == "cuda" else min(FIRST_LENGTH, max_length)
        self.positions = PositionLog(num_slots + 1, self.length, device)
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}

    @property
    def spare_slot(self) -> int:
        """The row that no request uses."""
        return self.num_slots

    def keys(self, layer: int) -> torch.Tensor:
        """Return the keys of a layer, [slot, head, position, D]."""
        return self._keys[layer]

    def values(self, layer: int) -> torch.Tensor:
        """Return the values of a layer, [slot, head, position, D]."""
        return self._values[layer]

    def ensure_layer(self, layer: int, num_kv_heads: int, key_dim: int, value_dim: int) -> None:
        """Allocate the storage of a layer, once."""
        if layer not in self._keys:
            self._keys[layer] = self._allocate_zeros(num_kv_heads, key_dim)
            self._values[layer] = self._allocate_zeros(num_kv_heads, value_dim)

    def ensure_length(self, length: int) -> None:
        """Make room for sequences of `length` tokens in every slot."""
        assert length <= self.max_length, f"{length} tokens exceed the store's {self.max_length}"
        if length <= self.length:
            return
        old, self.length = self.length, min(self.max_length, max(length, 2 * self.length))
        for stored in (self._keys, self._values):
            for layer, tensor in stored.items():
                stored[layer] = self._allocate_zeros(tensor.shape[1], tensor.shape[3])
                stored[layer][:, :, :old] = tensor
        self.positions.ensure_places(self.length)

    def copy_prefixes(self, sources: list[int], targets: list[int], num_tokens: int) -> None:
        """Copy the first `num_tokens` of each source into its target. All are read before any is written."""
        assert len(set(targets)) == len(targets)
        read, write = (torch.tensor(slots, device=self.device) for slots in (sources, targets))
        for tensor in (*self._keys.values(), *self._values.values(), self.positions.table):
            _copy_rows(tensor, read, write, num_tokens)

    def write_kv(
        self, layer: int, slots: torch.Tensor, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Write key [T, heads, D] and value rows at the tokens' slots and positions."""
        self.ensure_layer(layer, key.shape[1], key.shape[2], value.shape[2])
        for storage, new in ((self.keys(layer), key), (self.values(layer), value)):
            storage.transpose(1, 2).index_put_((slots, positions), new)

    def _allocate_zeros(self, num_kv_heads: int, dim: int) -> torch.Tensor:
        shape = (self.num_slots + 1, num_kv_heads, self.length, dim)
        if self.device.type == "cpu":  # numpy's zeros take no memory until written; torch's do
            raw = np.zeros(math.prod(shape) * self.dtype.itemsize, dtype=np.uint8)
            return torch.from_numpy(raw).view(self.dtype).view(shape)
        try:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        except torch.OutOfMemoryError as error:
            size = math.prod(shape) * self.dtype.itemsize / 2**30
            raise ConfigError(
                f"the cache does not fit into the GPU's memory: the keys of one layer take {size:.2f} GiB at "
                f"num_slots={self.num_slots} and max_length={self.max_length}; lower one of the two"
            ) from error


def _copy_rows(tensor: torch.Tensor, read: torch.Tensor, write: torch.Tensor, num_tokens: int) -> None:
    """Copy the first places of some rows [slot, :, place, ...] to others."""
    tensor[:, :, :num_tokens].index_copy_(0, write, tensor[:, :, :num_tokens][read])


class PrefixCopies:
    """Copies of prefixes between slots, made together: a few operations for a whole batch of new requests.

    Copies are decided one after the other, and a later one may read what an earlier one wrote, or a slot that
    is to be overwritten. Since all are read before any is written, a copy from a slot that itself waits for a
    copy reads that copy's source. Every row is copied as far as the longest prefix needs: what lies beyond
    its own prefix is computed afterwards.
    """

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._sources: dict[int, int] = {}  # by target
        self._num_tokens = 0

    def add_copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` of a slot, by the next `make_copies` at the latest."""
        longest = max(self._num_tokens, num_tokens)
        if longest * (len(self._sources) + 1) > MAX_COPIED_TOKENS:
            self.make_copies()
            longest = num_tokens
        self._sources[target] = self._sources.get(source, source)
        self._num_tokens = longest

    def make_copies(self) -> None:
        """Make the copies that were added."""
        if self._sources:
            self._store.copy_prefixes([*self._sources.values()], [*self._sources], self._num_tokens)
            self._sources.clear()
            self._num_tokens = 0
