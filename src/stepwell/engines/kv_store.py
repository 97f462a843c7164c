"""Keys and values of every slot, layer by layer, in memory the engine owns.

A slot is one row of storage that holds one sequence: `keys[layer][slot, head, position]`.
Rows never move, so a sequence keeps its slot from admission to eviction and a decoding
step writes one position per row. Grouped heads are stored once and never expanded.

Invariants
* Storage starts as zeros and only ever holds finite values: a masked position takes
  weight zero, and zero times a leftover NaN would still be NaN.
* Layers come into being at their first write, with the head count and width seen there.
* On CPU the length grows by doubling up to `max_length` (untouched pages cost nothing);
  on CUDA all of it is allocated at once, because captured graphs hold its addresses.
* There is one row more than slots: captured graphs pad their batch with it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from stepwell.core.errors import ConfigError

FIRST_LENGTH = 256


class KVStore:
    """Slot storage for all layers of one model."""

    def __init__(self, num_slots: int, max_length: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_slots = num_slots
        self.max_length = max_length
        self.device = device
        self.dtype = dtype
        self.length = max_length if device.type == "cuda" else min(FIRST_LENGTH, max_length)
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    @property
    def spare_slot(self) -> int:
        """The row that belongs to nobody."""
        return self.num_slots

    def ensure_layer(self, layer: int, num_kv_heads: int, key_dim: int, value_dim: int) -> None:
        """Make the storage of a layer, once."""
        if layer not in self.keys:
            self.keys[layer] = self._zeros(num_kv_heads, key_dim)
            self.values[layer] = self._zeros(num_kv_heads, value_dim)

    def ensure_length(self, length: int) -> None:
        """Make room for sequences of `length` tokens in every slot."""
        assert length <= self.max_length, f"{length} tokens exceed the store's {self.max_length}"
        if length <= self.length:
            return
        old, self.length = self.length, min(self.max_length, max(length, 2 * self.length))
        for table in (self.keys, self.values):
            for layer, tensor in table.items():
                table[layer] = self._zeros(tensor.shape[1], tensor.shape[3])
                table[layer][:, :, :old] = tensor

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        """Let slot `target` start with the first `num_tokens` of slot `source`."""
        for table in (self.keys, self.values):
            for tensor in table.values():
                tensor[target, :, :num_tokens] = tensor[source, :, :num_tokens]

    def write(self, layer: int, index: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put key [T, heads, D] and value rows where `write_index` says."""
        self.ensure_layer(layer, key.shape[1], key.shape[2], value.shape[2])
        keys, values = self.keys[layer], self.values[layer]
        keys.view(-1, keys.shape[3]).index_copy_(0, index, key.reshape(-1, keys.shape[3]))
        values.view(-1, values.shape[3]).index_copy_(0, index, value.reshape(-1, values.shape[3]))

    def write_index(self, slots: torch.Tensor, positions: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
        """Row numbers, in storage seen as [slots * heads * length, D], of tokens' heads."""
        heads = torch.arange(num_kv_heads, device=slots.device)
        return ((slots[:, None] * num_kv_heads + heads) * self.length + positions[:, None]).flatten()

    def _zeros(self, num_kv_heads: int, dim: int) -> torch.Tensor:
        shape = (self.num_slots + 1, num_kv_heads, self.length, dim)
        if self.device.type == "cpu":  # numpy's zeros stay unbacked until written; torch's do not
            raw = np.zeros(math.prod(shape) * self.dtype.itemsize, dtype=np.uint8)
            return torch.from_numpy(raw).view(self.dtype).view(shape)
        try:
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        except torch.OutOfMemoryError as error:
            size = math.prod(shape) * self.dtype.itemsize / 2**30
            raise ConfigError(
                f"the cache does not fit: keys of one layer are {size:.2f} GiB at num_slots={self.num_slots} "
                f"and max_length={self.max_length}; lower one of the two"
            ) from error
