"""Runs passes of the model for the core: prompts into the cache, one token for every row.

The core speaks in slots and numpy columns; a runner turns them into tensors, a plan and a
forward pass, and brings tokens back. `Runner` is the plain one, for any device.
`graphs.GraphRunner` replays its decoding step as a captured CUDA graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stepwell.core.arrays import AnyArray
from stepwell.engines.attention import DecodePlan, PrefillPlan
from stepwell.engines.forward import Forward
from stepwell.engines.kv_store import KVStore
from stepwell.engines.sampling import choose, uniforms
from stepwell.engines.slots import SlotTable


class Runner:
    """Eager passes with plain torch attention."""

    def __init__(self, forward: Forward, store: KVStore, table: SlotTable) -> None:
        self.forward, self.store, self.table = forward, store, table

    def prefill(self, slots: AnyArray, counts: AnyArray) -> None:
        """Compute keys and values of the next `counts` tokens of each slot."""
        starts = self.table.computed[slots]
        ids = np.concatenate(
            [self.table.tokens[s, a : a + n] for s, a, n in zip(slots, starts, counts, strict=True)]
        )
        self.store.ensure_length(int((starts + counts).max()))
        plan = self.prefill_plan(slots, starts, counts)
        self.forward(torch.from_numpy(ids).to(self.store.device), plan.positions, plan, want_logits=False)

    def prefill_plan(self, slots: AnyArray, starts: AnyArray, counts: AnyArray) -> Any:
        return PrefillPlan(self.store, slots, starts, counts)

    def decode(self, slots: AnyArray) -> tuple[AnyArray, AnyArray]:
        """The next token of each slot (ascending) and its logprob."""
        table, device = self.table, self.store.device
        positions = table.length[slots] - 1
        self.store.ensure_length(int(positions.max()) + 1)
        ids = torch.from_numpy(table.tokens[slots, positions]).to(device)
        plan = self.decode_plan(slots, positions)
        logits = self.forward(ids, plan.positions, plan, want_logits=True)
        assert logits is not None
        tokens, logprobs = choose(logits, *self._how(slots, positions))
        return tokens.cpu().numpy(), logprobs.float().cpu().numpy()

    def decode_plan(self, slots: AnyArray, positions: AnyArray) -> Any:
        return DecodePlan.of_host(self.store, slots, positions)

    def _how(self, slots: AnyArray, positions: AnyArray) -> tuple[torch.Tensor | None, ...]:
        """Temperature, top-p and uniform numbers, leaving out what no row needs."""
        table, device = self.table, self.store.device
        temperature, top_p = table.temperature[slots], table.top_p[slots]
        if not temperature.any():
            return None, None, None
        numbers = uniforms(table.seed[slots], positions + 1 - table.num_prompt[slots])
        return (
            None if (temperature == 1.0).all() else torch.from_numpy(temperature).to(device),
            None if (top_p == 1.0).all() else torch.from_numpy(top_p).to(device),
            torch.from_numpy(numbers).to(device),
        )
