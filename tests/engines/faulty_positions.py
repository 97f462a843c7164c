"""Faults in how an engine reads positions, planted in a correct engine and taken out again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepwell.engines import EmbeddedEngine

FIRST_WRONG = 64


class ShiftedForward:
    """A forward pass that counts one token twice: from position 64 on, every position is one too high."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, *args: Any, **options: Any) -> Any:
        return self._inner(ids, positions + (positions >= FIRST_WRONG), *args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def shift_indices(engine: EmbeddedEngine) -> Iterator[None]:
    """Let the engine look up other rows of correct tables."""
    runner = engine._core.runner
    own = runner.forward
    runner.forward = ShiftedForward(own)
    yield
    runner.forward = own
    engine.forget()


@contextmanager
def shift_tables(engine: EmbeddedEngine) -> Iterator[None]:
    """Let the engine look up the right rows of tables that are shifted by one."""
    rotation = engine._core.runner.forward.read_tables()
    assert rotation is not None
    tables = (rotation.cos, rotation.sin, rotation.signed_sin)
    kept = [table.clone() for table in tables]
    for table in tables:
        table[FIRST_WRONG:-1] = table[FIRST_WRONG + 1 :].clone()
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
