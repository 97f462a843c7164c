"""Plans and layer operations that run on the Triton kernels.

Counterparts of `attention.DecodePlan`, `attention.PrefillPlan` and `forward.LlamaOps`, with
the same meaning. `LlamaForward` passes a whole qkv tensor to `TritonOps.attend`, which
rotates and stores it in one kernel. The model's own code calls `attend` of the plans, with
heads already rotated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from stepwell.core.arrays import AnyArray
from stepwell.core.errors import ModelError
from stepwell.engines import triton_kernels as kernels
from stepwell.engines.attention import AttentionSpec
from stepwell.engines.forward import LlamaLayer, LlamaOps, Rotation
from stepwell.engines.kv_store import KVStore


def check_widths(key: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse keys and values of different widths: the kernels do not support them."""
    if key.shape[2] != value.shape[2]:
        raise ModelError(
            f"this model's keys are {key.shape[2]} wide and its values {value.shape[2]}; the Triton kernels "
            'need equal widths; set attention_kernel="torch"'
        )


class TritonPlan(ABC):
    """New tokens in `slots` of a store, at `positions`."""

    store: KVStore
    slots: torch.Tensor
    positions: torch.Tensor

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        self.store.write_kv(layer, self.slots, self.positions, key, value)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        check_widths(key, value)
        self.write_kv(layer, key, value)
        return self.attend_stored(layer, query, spec)

    @abstractmethod
    def attend_stored(self, layer: int, query: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """Attend over the slots after keys and values of the tokens were stored."""


class TritonDecodePlan(TritonPlan):
    """One new token in each of `slots` at `positions`, tensors that may change between replays."""

    def __init__(
        self, store: KVStore, slots: torch.Tensor, positions: torch.Tensor, num_processors: int
    ) -> None:
        self.store, self.slots, self.positions = store, slots, positions
        self._num_processors = num_processors

    def attend_stored(self, layer: int, query: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        keys, values = self.store.keys(layer), self.store.values(layer)
        splits = kernels.choose_num_splits(len(query), keys.shape[1], self._num_processors)
        return kernels.decode_attention(
            query, keys, values, self.slots, self.positions, spec.scaling, spec.window, spec.softcap, splits
        )


class TritonPrefillPlan(TritonPlan):
    """Runs of new tokens, cut into tiles; each tile is one program per head."""

    def __init__(self, store: KVStore, slots: AnyArray, starts: AnyArray, counts: AnyArray) -> None:
        self.store = store
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
        tiles = []
        for slot, start, count, offset in zip(slots, starts, counts, offsets, strict=True):
            for done in range(0, int(count), kernels.PREFILL_TILE):
                tiles.append((slot, start + done, offset + done, min(kernels.PREFILL_TILE, count - done)))
        positions = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        self.positions = torch.from_numpy(positions).to(store.device)
        self.slots = torch.from_numpy(np.repeat(slots, counts)).to(store.device)
        columns = torch.tensor(np.array(tiles, dtype=np.int64).T.copy(), device=store.device)
        self._tiles = (columns[0], columns[1], columns[2], columns[3])

    def attend_stored(self, layer: int, query: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        return kernels.prefill_attention(
            query,
            self.store.keys(layer),
            self.store.values(layer),
            self._tiles,
            spec.scaling,
            spec.window,
            spec.softcap,
        )


class TritonOps(LlamaOps):
    """The operations of a layer besides matrix products, one kernel each."""

    def __init__(self, rotation: Rotation) -> None:
        super().__init__(rotation)
        self._tables = (rotation.cos, rotation.sin)

    def begin_pass(self, positions: torch.Tensor, plan: TritonPlan) -> torch.Tensor:  # type: ignore[override]
        """Return the plan's positions: by these the kernel reads the tables."""
        return plan.positions

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return kernels.rms_norm(x, weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return kernels.silu_mul(gate_up)

    def attend(  # type: ignore[override]
        self, plan: TritonPlan, index: int, qkv: torch.Tensor, num_heads: int, layer: LlamaLayer
    ) -> torch.Tensor:
        query = self._rotate_and_store(plan, index, qkv, num_heads, layer, want_query=True)
        return plan.attend_stored(index, query, layer.spec)

    def write_kv(  # type: ignore[override]
        self, plan: TritonPlan, index: int, qkv: torch.Tensor, num_heads: int, layer: LlamaLayer
    ) -> None:
        self._rotate_and_store(plan, index, qkv, num_heads, layer, want_query=False)

    def _rotate_and_store(
        self,
        plan: TritonPlan,
        index: int,
        qkv: torch.Tensor,
        num_heads: int,
        layer: LlamaLayer,
        want_query: bool,
    ) -> torch.Tensor:
        store, dim = plan.store, qkv.shape[2]
        store.ensure_layer(index, (qkv.shape[1] - num_heads) // 2, dim, dim)
        norms = layer.norms
        return kernels.rotate_and_store(
            qkv,
            None if norms is None else norms.weight,
            0.0 if norms is None else norms.eps,
            *self._tables,
            plan.slots,
            plan.positions,
            store.keys(index),
            store.values(index),
            num_heads,
            want_query,
        )
