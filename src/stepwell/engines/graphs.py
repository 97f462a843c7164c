"""Decoding with captured CUDA graphs: one launch per step, whatever the model's depth.

A graph covers forward pass, sampling and the move to the next position for a fixed number
of rows. Its inputs are in device memory: token, position, slot, seed and index of every
row, its temperature and top-p. After a step they already describe the next one. So as long
as the batch has the same requests, a step is one graph launch and one small copy back.
When a request joins or leaves, the host's columns are uploaded again.

Row counts are rounded up to fixed sizes; spare rows use the store's spare slot. Graphs are
captured on first use, on the spare slot only, so that no request is disturbed. They share
one memory pool, since they never run at the same time.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from stepwell.core.arrays import AnyArray
from stepwell.engines.attention import DecodePlan
from stepwell.engines.forward import ForwardPass
from stepwell.engines.kv_store import KVStore
from stepwell.engines.runner import Runner
from stepwell.engines.sampling import choose_tokens, hash_uniforms_on_device
from stepwell.engines.slots import SlotTable

LENGTH_BUCKET = 256  # plain-torch attention reads multiples of this; Triton reads exactly what is used
WARM_UP_PASSES = 2

GraphKey = tuple[
    int, int, bool
]  # rows, length that is read (0: exactly what is used), whether top-p is needed


class CapturedGraph(Protocol):
    """Operations that were captured once and are launched together."""

    def replay(self) -> None: ...


def round_up_rows(num_rows: int) -> int:
    """Return the smallest captured size for `num_rows`: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ..."""
    power = 1 << (num_rows - 1).bit_length()
    return 3 * power // 4 if power >= 4 and num_rows <= 3 * power // 4 else power


class GraphRunner(Runner):
    """A runner that replays captured decoding steps. CUDA only."""

    def __init__(
        self, forward: ForwardPass, store: KVStore, table: SlotTable, use_triton: bool, max_rows: int
    ) -> None:
        super().__init__(forward, store, table, use_triton)
        rows, device = round_up_rows(max_rows), store.device
        pin = device.type == "cuda"
        self._ints = torch.zeros(5 * rows, dtype=torch.int64, device=device)
        self._floats = torch.zeros(2 * rows, dtype=torch.float32, device=device)
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(rows, dtype=torch.float32, device=device)
        self._host_ints = torch.zeros(5 * rows, dtype=torch.int64, pin_memory=pin)
        self._host_floats = torch.zeros(2 * rows, dtype=torch.float32, pin_memory=pin)
        self._host_tokens = torch.zeros(rows, dtype=torch.int64, pin_memory=pin)
        self._host_logprobs = torch.zeros(rows, dtype=torch.float32, pin_memory=pin)
        self._graphs: dict[GraphKey, CapturedGraph] = {}
        self._pool: Any = None
        self._on_device: tuple[bytes, int, int] | None = None

    def decode(self, slots: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Sample the next token of each slot (ascending), with its logprob."""
        key = self._choose_graph(slots)
        if key not in self._graphs:
            self._graphs[key] = self._capture_graph(key)
            self._on_device = None
        state = (slots.tobytes(), self.table.num_changes, key[0])
        if state != self._on_device:
            self._upload_rows(slots, key[0])
            self._on_device = state
        self._graphs[key].replay()
        count = len(slots)
        self._host_tokens[:count].copy_(self._tokens[:count], non_blocking=True)
        self._host_logprobs[:count].copy_(self._logprobs[:count], non_blocking=True)
        self._wait_for_pass()
        return self._host_tokens[:count].numpy().copy(), self._host_logprobs[:count].numpy().copy()

    def _choose_graph(self, slots: AnyArray) -> GraphKey:
        if self.use_triton:
            return round_up_rows(len(slots)), 0, True
        longest = int(self.table.length[slots].max())
        length = min(-(-longest // LENGTH_BUCKET) * LENGTH_BUCKET, self.store.max_length)
        self.store.ensure_length(length)
        return round_up_rows(len(slots)), length, bool((self.table.top_p[slots] < 1.0).any())

    def _upload_rows(self, slots: AnyArray, rows: int) -> None:
        """Copy token, position, slot, seed, index, temperature and top-p of every row to the device."""
        table, count = self.table, len(slots)
        positions = table.length[slots] - 1
        # tables of 5 and 2 rows at the front of flat buffers: contiguous, so that one copy moves each
        ints = self._host_ints.numpy()[: 5 * rows].reshape(5, rows)
        floats = self._host_floats.numpy()[: 2 * rows].reshape(2, rows)
        ints[:] = np.array([0, 0, self.store.spare_slot, 0, 0])[:, None]
        floats[:] = np.array([0.0, 1.0])[:, None]
        ints[0, :count] = table.tokens[slots, positions]
        ints[1, :count] = positions
        ints[2, :count] = slots
        ints[3, :count] = table.seed[slots]
        ints[4, :count] = positions + 1 - table.num_prompt[slots]
        floats[0, :count], floats[1, :count] = table.temperature[slots], table.top_p[slots]
        # every decode ends with a synchronise, so the pinned buffers may be rewritten
        self._ints[: 5 * rows].copy_(self._host_ints[: 5 * rows], non_blocking=True)
        self._floats[: 2 * rows].copy_(self._host_floats[: 2 * rows], non_blocking=True)

    def _wait_for_pass(self) -> None:
        torch.cuda.current_stream().synchronize()

    def _capture_graph(self, key: GraphKey) -> CapturedGraph:
        rows = key[0]
        self._upload_rows(np.zeros(0, dtype=np.int64), rows)  # spare rows only
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_PASSES):  # compiles kernels and lets libraries allocate
                self._run_pass(key)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.current_stream().synchronize()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # thread_local: a trainer in another thread may use the device at the same time
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            self._run_pass(key)
        return graph

    def _run_pass(self, key: GraphKey) -> None:
        """Run one decoding step over the first rows of the device's state; this is what gets captured."""
        rows, length, use_top_p = key
        ids, positions, slots, seeds, indices = self._ints[: 5 * rows].view(5, rows)
        temperature, top_p = self._floats[: 2 * rows].view(2, rows)
        plan: Any = (
            self.build_triton_decode_plan(slots, positions)
            if self.use_triton
            else DecodePlan(self.store, slots, positions, length)
        )
        logits = self.forward(ids, positions, plan, want_logits=True)
        assert logits is not None
        self.store.positions.note_tokens(plan.slots, plan.positions, ids, self.forward.positions)
        numbers = hash_uniforms_on_device(seeds, indices)
        tokens, logprobs = self._tokens[:rows], self._logprobs[:rows]
        if self.use_triton:
            from stepwell.engines.triton_sampling import sample_tokens

            sample_tokens(logits, temperature, top_p, numbers, tokens, logprobs)
        else:
            chosen, chances = choose_tokens(logits, temperature, top_p if use_top_p else None, numbers)
            tokens.copy_(chosen)
            logprobs.copy_(chances)
        ids.copy_(tokens)
        indices.add_(1)
        positions.add_(1).clamp_(
            max=self.store.max_length - 1
        )  # spare rows advance too and must stay in range
