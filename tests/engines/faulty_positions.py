"""Faults in how an engine reads positions, planted in a correct engine and taken out again.

They work on a CPU and on a GPU, with captured graphs and Triton kernels too; `benchmarks/parity_faults.py`
plants them in a run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from stepwell.engines import EmbeddedEngine, kv_store
from stepwell.engines.slots import SlotPlacement

FIRST_WRONG = 64


class ShiftedForward:
    """A forward pass that counts one token twice: from position 64 on, every position is one too high.

    Of passes that prefill, of those that decode, or of both.
    """

    def __init__(self, inner: Any, *, uses_plan: bool, prefills: bool, decodes: bool) -> None:
        self._inner, self._uses_plan = inner, uses_plan
        self._prefills, self._decodes = prefills, decodes

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, plan: Any, want_logits: bool, features: Any = None
    ) -> Any:
        if self._decodes if want_logits else self._prefills:
            if self._uses_plan:  # the kernel looks up the plan's positions, and stores the key there too
                plan = copy.copy(plan)
                last = plan.store.max_length - 1
                plan.positions = (plan.positions + (plan.positions >= FIRST_WRONG)).clamp(max=last)
            positions = positions + (positions >= FIRST_WRONG)
        return self._inner(ids, positions, plan, want_logits=want_logits, features=features)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def shift_indices(engine: EmbeddedEngine, *, prefills: bool = True, decodes: bool = True) -> Iterator[None]:
    """Let the engine look up other rows of correct tables."""
    runner = engine._core.runner
    own = runner.forward
    runner.forward = ShiftedForward(own, uses_plan=runner.use_triton, prefills=prefills, decodes=decodes)
    _drop_graphs(runner)
    engine.forget()
    yield
    runner.forward = own
    _drop_graphs(runner)
    engine.forget()


def _drop_graphs(runner: Any) -> None:
    """Let decoding steps be captured again, with the forward pass that there is now."""
    if hasattr(runner, "_graphs"):
        runner._graphs.clear()


@contextmanager
def shift_copies(engine: EmbeddedEngine) -> Iterator[None]:
    """Let copies of prefixes lose their first token: every other one lies a place too early."""
    own = kv_store._copy_rows

    def lose_first(tensor: torch.Tensor, read: torch.Tensor, write: torch.Tensor, num_tokens: int) -> None:
        own(tensor, read, write, num_tokens)
        tensor[:, :, : num_tokens - 1].index_copy_(0, write, tensor[:, :, 1:num_tokens][write])

    kv_store._copy_rows = lose_first
    engine.forget()
    yield
    kv_store._copy_rows = own
    engine.forget()


@contextmanager
def reuse_too_much(engine: EmbeddedEngine) -> Iterator[None]:
    """Let the engine take one token more of a cached prefix for valid than is the same."""
    table = engine._core.table
    own = table.place_prompt

    def place_prompt(prompt: Any, conversation: str | None) -> SlotPlacement | None:
        found = own(prompt, conversation)
        if found is None or not 0 < found.num_cached < len(prompt) - 1:
            return found
        return replace(found, num_cached=found.num_cached + 1)

    table.place_prompt = place_prompt  # type: ignore[method-assign]
    engine.forget()
    yield
    table.place_prompt = own  # type: ignore[method-assign]
    engine.forget()


@contextmanager
def shift_tables(engine: EmbeddedEngine, by: int = 1) -> Iterator[None]:
    """Let the engine look up the right rows of tables that are shifted."""
    rotation = engine._core.runner.forward.read_tables()
    assert rotation is not None
    tables = (rotation.cos, rotation.sin, rotation.signed_sin)
    kept = [table.clone() for table in tables]
    for table in tables:
        table[FIRST_WRONG:-by] = table[FIRST_WRONG + by :].clone()
    engine.forget()
    yield
    for table, own in zip(tables, kept, strict=True):
        table.copy_(own)
    engine.forget()


@contextmanager
def change_frequencies(engine: EmbeddedEngine) -> Iterator[None]:
    """Let the model inside the engine rotate a little faster."""
    frequencies = engine.model.get_decoder().rotary_emb.inv_freq
    kept = frequencies.clone()
    frequencies *= 1.0 + 1e-6
    yield
    frequencies.copy_(kept)
    engine.forget()


INDEX_FAULTS: dict[str, Callable[[EmbeddedEngine], AbstractContextManager[None]]] = {
    "prefill and decoding read one position too high": shift_indices,
    "prefill reads one position too high": partial(shift_indices, decodes=False),
    "decoding reads one position too high": partial(shift_indices, prefills=False),
    "copied prefixes lie one place too early": shift_copies,
    "one token too many is reused": reuse_too_much,
}
"""Faults that leave every table as it is."""
