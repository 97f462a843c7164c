"""Runs forward passes for the core: prompts into the cache, one token for every row.

The core works with slots and numpy columns. A runner turns them into tensors, a plan and a
forward pass, and returns tokens. `Runner` is the plain one, for any device.
`graphs.GraphRunner` replays its decoding step as a captured CUDA graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from stepwell.core.arrays import AnyArray
from stepwell.engines.attention import DecodePlan, PrefillPlan
from stepwell.engines.forward import ForwardPass
from stepwell.engines.image_features import ImageFeatures, TokenFeatures
from stepwell.engines.kv_store import KVStore
from stepwell.engines.sampling import choose_tokens, hash_uniforms
from stepwell.engines.slots import SlotTable


class Runner:
    """Eager passes, with plain torch attention or the Triton kernels."""

    def __init__(
        self, forward: ForwardPass, store: KVStore, table: SlotTable, use_triton: bool = False
    ) -> None:
        self.forward, self.store, self.table, self.use_triton = forward, store, table, use_triton
        self.image_features: ImageFeatures | None = None

    def on_device(self) -> AbstractContextManager[Any]:
        """Make the model's GPU, if it has one, the current device of this thread."""
        device = self.store.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def prefill(self, slots: AnyArray, counts: AnyArray) -> None:
        """Compute keys and values of the next `counts` tokens of each slot."""
        starts = self.table.computed[slots]
        runs = [self.table.tokens[s, a : a + n] for s, a, n in zip(slots, starts, counts, strict=True)]
        self.store.ensure_length(int((starts + counts).max()))
        plan, positions, features = self.prepare_prefill(slots, starts, counts)
        if self.image_features is not None:
            runs = [
                self.image_features.read_ids(s, a, run) for s, a, run in zip(slots, starts, runs, strict=True)
            ]
        ids = torch.from_numpy(np.concatenate(runs)).to(self.store.device)
        self.forward(ids, positions, plan, want_logits=False, features=features)
        self.store.positions.note_tokens(plan.slots, plan.positions, ids, self.forward.positions)

    def prepare_prefill(
        self, slots: AnyArray, starts: AnyArray, counts: AnyArray
    ) -> tuple[Any, torch.Tensor, TokenFeatures | None]:
        """Build a plan for runs of tokens, with their rotary positions and their image features."""
        plan = self.build_prefill_plan(slots, starts, counts)
        if self.image_features is None:
            return plan, plan.positions, None
        own = self.image_features.positions(slots, starts, counts)
        positions = plan.positions if own is None else torch.from_numpy(own).to(self.store.device)
        return plan, positions, self.image_features.find_features(slots, starts, counts)

    def build_prefill_plan(self, slots: AnyArray, starts: AnyArray, counts: AnyArray) -> Any:
        """Build a plan for runs of `counts` tokens from `starts` in `slots`."""
        if self.use_triton:
            from stepwell.engines.triton_plans import TritonPrefillPlan

            return TritonPrefillPlan(self.store, slots, starts, counts)
        return PrefillPlan(self.store, slots, starts, counts)

    def decode(self, slots: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Sample the next token of each slot (ascending), with its logprob."""
        table, device = self.table, self.store.device
        positions = table.length[slots] - 1
        self.store.ensure_length(int(positions.max()) + 1)
        ids = torch.from_numpy(table.tokens[slots, positions]).to(device)
        plan = self.build_decode_plan(slots, positions)
        turned, shift = plan.positions, table.shift[slots]
        if shift.any():
            turned = turned + torch.from_numpy(shift).to(device)
        logits = self.forward(ids, turned, plan, want_logits=True)
        assert logits is not None
        self.store.positions.note_tokens(plan.slots, plan.positions, ids, self.forward.positions)
        tokens, logprobs = choose_tokens(logits, *self._make_sampling_tensors(slots, positions))
        return tokens.cpu().numpy(), logprobs.float().cpu().numpy()

    def build_decode_plan(self, slots: AnyArray, positions: AnyArray) -> Any:
        """Build a plan for one token at `positions` in each of `slots`."""
        if self.use_triton:
            device = self.store.device
            return self.build_triton_decode_plan(
                torch.from_numpy(slots).to(device), torch.from_numpy(positions).to(device)
            )
        return DecodePlan.from_host(self.store, slots, positions)

    def build_triton_decode_plan(self, slots: torch.Tensor, positions: torch.Tensor) -> Any:
        from stepwell.engines.triton_plans import TritonDecodePlan

        device = self.store.device
        processors = 1  # the interpreter's
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        return TritonDecodePlan(self.store, slots, positions, processors)

    def compute_mark(self, slot: int, num_tokens: int) -> int:
        """Mark the positions at which the first tokens of a slot were read (`PositionLog`)."""
        ids = self.table.tokens[slot, :num_tokens]
        if self.image_features is not None:
            ids = self.image_features.read_ids(slot, 0, ids)
        return self.store.positions.compute_mark(slot, ids)

    def _make_sampling_tensors(self, slots: AnyArray, positions: AnyArray) -> tuple[torch.Tensor | None, ...]:
        """Return temperature, top-p and uniform numbers; None for what no row needs."""
        table, device = self.table, self.store.device
        temperature, top_p = table.temperature[slots], table.top_p[slots]
        if not temperature.any():
            return None, None, None
        numbers = hash_uniforms(table.seed[slots], positions + 1 - table.num_prompt[slots])
        return (
            None if (temperature == 1.0).all() else torch.from_numpy(temperature).to(device),
            None if (top_p == 1.0).all() else torch.from_numpy(top_p).to(device),
            torch.from_numpy(numbers).to(device),
        )
