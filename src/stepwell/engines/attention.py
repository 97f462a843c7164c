"""Attention over slot storage, in plain torch: the reference for every faster kernel.

One forward pass processes a flat list of new tokens, each at a position of a slot. A *plan*
is made once per pass. It says where those tokens are written and what they may attend to.
Every layer then calls `plan.attend`, which writes its keys and values and attends over the
slot's history.

* `DecodePlan`: one new token per slot. The query heads that share a key head become
  rows of one small product, so that grouped keys are read once and never expanded.
* `PrefillPlan`: runs of new tokens. Runs of similar size are padded into one product.

`attention_function` is what transformers' models call in place of their own attention
(see `install_attention`). It finds the plan of the running pass in a thread-local, because
not every model passes keyword arguments on to its attention. No mask function is registered,
so transformers builds no mask; the plan handles causality and sliding windows.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from stepwell.core.arrays import AnyArray
from stepwell.core.errors import ModelError
from stepwell.engines.kv_store import KVStore

ATTENTION_NAME = "stepwell_slots"
DENSE_ENOUGH = 0.6  # share of busy rows above which reading a whole range is faster than gathering rows


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Attention settings of one layer: scale, sliding window, logit softcap."""

    scaling: float
    window: int | None = None
    softcap: float | None = None


class AttentionPlan(Protocol):
    """What one forward pass writes to the cache and attends to."""

    slots: torch.Tensor
    """The slot of each new token, [T]."""
    positions: torch.Tensor
    """Its place there, [T]."""

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key [T, K, D] and value [T, K, Dv] of the new tokens."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        """Do what `write_kv` does, then attend with query [T, H, D] of the new tokens: [T, H, Dv]."""


class DecodePlan:
    """One new token in each of `slots`, at `positions`; both int64 tensors, slots ascending.

    `length` limits how far storage is read. `rows` is (first, last + 1) if the host knows that
    the slots lie in one range of storage, which is then read in place.
    `even` says that every row of that range sees exactly `length` tokens: no mask is needed.
    """

    def __init__(
        self,
        store: KVStore,
        slots: torch.Tensor,
        positions: torch.Tensor,
        length: int,
        rows: tuple[int, int] | None = None,
        even: bool = False,
    ) -> None:
        self.store, self.slots, self.positions, self.length = store, slots, positions, length
        self._mask_biases: dict[int | None, torch.Tensor | None] = {None: None} if even else {}
        self._rows = rows
        self._spread = slots - rows[0] if rows and rows[1] - rows[0] != len(slots) else None

    @classmethod
    def from_host(cls, store: KVStore, slots: AnyArray, positions: AnyArray) -> DecodePlan:
        """Build a plan from host arrays, which show what can be read in place."""
        first, last = int(slots[0]), int(slots[-1]) + 1
        length = int(positions.max()) + 1
        return cls(
            store,
            torch.from_numpy(slots).to(store.device),
            torch.from_numpy(positions).to(store.device),
            length,
            rows=(first, last) if len(slots) >= DENSE_ENOUGH * (last - first) else None,
            even=last - first == len(slots) and int(positions.min()) + 1 == length,
        )

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        self.store.write_kv(layer, self.slots, self.positions, key, value)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        store = self.store
        self.write_kv(layer, key, value)
        heads = (key.shape[1], -1)  # query heads that share a key head
        query = self._spread_rows(query).unflatten(1, heads)  # type: ignore[no-untyped-call]
        keys, values = self._read_rows(store.keys(layer)), self._read_rows(store.values(layer))
        out = compute_attention(
            query, keys, values, self._get_mask_bias(spec.window, query.dtype), spec
        ).flatten(1, 2)
        return out if self._spread is None else out.index_select(0, self._spread)

    def _spread_rows(self, new: torch.Tensor) -> torch.Tensor:
        """Give every row that is read a row of its own; results of idle rows are not used."""
        if self._spread is None or self._rows is None:
            return new
        wide = new.new_zeros(self._rows[1] - self._rows[0], *new.shape[1:])
        return wide.index_copy_(0, self._spread, new)

    def _read_rows(self, storage: torch.Tensor) -> torch.Tensor:
        if self._rows is None:
            return storage[:, :, : self.length].index_select(0, self.slots)
        return storage[self._rows[0] : self._rows[1], :, : self.length]

    def _get_mask_bias(self, window: int | None, dtype: torch.dtype) -> torch.Tensor | None:
        if window is not None and window >= self.length:
            window = None
        if window not in self._mask_biases:
            positions = self._spread_rows(self.positions)
            self._mask_biases[window] = build_mask_bias(positions, self.length, window, dtype)[:, None, None]
        return self._mask_biases[window]


@dataclass(slots=True)
class _Runs:
    """Runs of similar size, padded together: [S, n] tokens against [S, length] keys."""

    slots: AnyArray
    tokens: torch.Tensor  # [S * n] places in the flat list; padding repeats a run's last token
    positions: torch.Tensor  # [S, n]
    places: torch.Tensor  # [num_tokens of these runs] places in the padded grid
    targets: torch.Tensor  # [num_tokens of these runs] places in the flat list
    length: int
    hidden: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def build_mask_bias(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        if window not in self.hidden:
            self.hidden[window] = build_mask_bias(self.positions, self.length, window, dtype)[:, None, None]
        return self.hidden[window]


class PrefillPlan:
    """Runs of new tokens: run i holds `counts[i]` tokens of `slots[i]` from position `starts[i]`."""

    def __init__(self, store: KVStore, slots: AnyArray, starts: AnyArray, counts: AnyArray) -> None:
        self.store = store
        offsets = np.concatenate([[0], np.cumsum(counts)])
        positions = np.concatenate([np.arange(s, s + c) for s, c in zip(starts, counts, strict=True)])
        self.positions = torch.from_numpy(positions).to(store.device)
        self.slots = torch.from_numpy(np.repeat(slots, counts)).to(store.device)
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, (start, count) in enumerate(zip(starts, counts, strict=True)):
            groups[int(count - 1).bit_length(), int(start + count - 1).bit_length()].append(i)
        self._runs = [
            self._build_grid(np.array(rows), slots, starts, counts, offsets) for rows in groups.values()
        ]

    def _build_grid(
        self, rows: AnyArray, slots: AnyArray, starts: AnyArray, counts: AnyArray, offsets: AnyArray
    ) -> _Runs:
        width = int(counts[rows].max())
        steps = np.minimum(np.arange(width), counts[rows, None] - 1)
        tokens = offsets[rows, None] + steps
        real = np.arange(width) < counts[rows, None]
        device = self.store.device
        return _Runs(
            slots=slots[rows],
            tokens=torch.from_numpy(tokens.reshape(-1)).to(device),
            positions=torch.from_numpy(starts[rows, None] + steps).to(device),
            places=torch.from_numpy(np.flatnonzero(real)).to(device),
            targets=torch.from_numpy(tokens[real]).to(device),
            length=int((starts[rows] + counts[rows]).max()),
        )

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        self.store.write_kv(layer, self.slots, self.positions, key, value)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, spec: AttentionSpec
    ) -> torch.Tensor:
        self.write_kv(layer, key, value)
        out = query.new_empty(len(query), query.shape[1], value.shape[2])
        for runs in self._runs:
            keys = _select_rows(self.store.keys(layer), runs.slots, runs.length)
            values = _select_rows(self.store.values(layer), runs.slots, runs.length)
            grid = query.index_select(0, runs.tokens).view(len(runs.slots), -1, *query.shape[1:])
            grid = grid.unflatten(2, (key.shape[1], -1))  # type: ignore[no-untyped-call]
            grid = grid.permute(0, 2, 3, 1, 4)  # [S, K, G, n, D]
            seen = compute_attention(
                grid.flatten(2, 3), keys, values, runs.build_mask_bias(spec.window, query.dtype), spec
            )
            flat = seen.view(*grid.shape[:4], -1).permute(0, 3, 1, 2, 4).reshape(-1, *out.shape[1:])
            out.index_copy_(0, runs.targets, flat.index_select(0, runs.places))
        return out


def _select_rows(storage: torch.Tensor, slots: AnyArray, length: int) -> torch.Tensor:
    """Select rows of storage, as a view where they are adjacent."""
    first = int(slots[0])
    if np.array_equal(slots, np.arange(first, first + len(slots))):
        return storage[first : first + len(slots), :, :length]
    return storage[:, :, :length].index_select(0, torch.from_numpy(slots).to(storage.device))


def build_mask_bias(
    positions: torch.Tensor, length: int, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """Return -inf at keys [..., length] that a token at `positions` [...] must not see, else 0."""
    columns = torch.arange(length, device=positions.device)
    hidden = columns > positions[..., None]
    if window is not None:
        hidden |= columns <= positions[..., None] - window
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def compute_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor | None,
    spec: AttentionSpec,
) -> torch.Tensor:
    """Compute softmax attention of query rows [S, K, G * n, D] over keys [S, K, L, D].

    `bias` is [S, 1, n, L] with an axis for the G heads of a group, [S, 1, 1, n, L], or
    [S, 1, 1, L] where n is 1.
    """
    if query.device.type == "cpu" and spec.softcap is None:
        return _compute_on_cpu(query, key, value, bias, spec.scaling)
    scores = torch.matmul(query * spec.scaling, key.transpose(-1, -2))
    if spec.softcap is not None:
        scores = torch.tanh(scores / spec.softcap).mul_(spec.softcap)
    if bias is not None:
        shape = (-1, bias.shape[3])
        shaped = scores if bias.ndim == 4 else scores.unflatten(2, shape)  # type: ignore[no-untyped-call]
        shaped.add_(bias)
    wide = torch.float64 if scores.dtype == torch.float64 else torch.float32
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=wide).to(value.dtype), value)


def _compute_on_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Compute the same with torch's fused kernel: batches of small products are slow without MKL."""
    if bias is not None and bias.ndim == 5:
        num_heads = query.shape[2] // bias.shape[3]
        bias = bias.expand(-1, -1, num_heads, -1, -1).flatten(2, 3)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)


_thread = threading.local()


@contextmanager
def use_plan(plan: AttentionPlan) -> Iterator[None]:
    """Let attention calls of this thread use `plan`."""
    _thread.plan = plan
    try:
        yield
    finally:
        _thread.plan = None


def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Run attention as transformers calls it: [1, heads, T, D] in, [1, T, heads, D] out."""
    plan: AttentionPlan | None = getattr(_thread, "plan", None)
    layer = getattr(module, "layer_idx", None)
    if plan is None or layer is None or query.shape[0] != 1 or key.shape[2] != query.shape[2]:
        raise ModelError(
            f"{type(module).__name__} calls attention in a way that the embedded engine does not support; "
            "sample this model with another engine"
        )
    spec = AttentionSpec(scaling if scaling is not None else query.shape[-1] ** -0.5, sliding_window, softcap)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return plan.attend(layer, query, key, value, spec)[None], None


def install_attention(model: torch.nn.Module) -> None:
    """Make a transformers model call `attention_function`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attention_function)
    model.set_attn_implementation(ATTENTION_NAME)  # type: ignore[operator]
    if model.config._attn_implementation != ATTENTION_NAME:  # type: ignore[union-attr]
        raise ModelError(
            f"the attention of {type(model).__name__} cannot be replaced (it does not use transformers' "
            "AttentionInterface), so the embedded engine cannot run it; use another engine for this model"
        )
