"""A trainer's rank with a fault: `python -m tests.training.faulty_rank FD FAULT`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch

from stepwell.training.rank_main import main
from stepwell.training.rank_worker import RankWorker


def shift_positions(rank: RankWorker) -> None:
    """Let it read every token one position too late."""
    own = rank.policy.prepare_batch

    def prepare_batch(packed: Any) -> Any:
        prepared = own(packed)
        for microbatch in prepared.microbatches:
            microbatch.positions[...] += 1
        return prepared

    rank.policy.prepare_batch = prepare_batch  # type: ignore[method-assign]


def change_frequencies(rank: RankWorker) -> None:
    """Let it rotate a little faster."""
    rank.policy.model.get_decoder().rotary_emb.inv_freq.mul_(1.0 + 1e-6)


def skip_steps(rank: RankWorker) -> None:
    """Let it keep its old weights."""
    rank.optimizer.step = lambda *_, **__: None  # type: ignore[method-assign,assignment]


def change_weights(rank: RankWorker) -> None:
    """Let its weights move after a step: between two updates, where no other rank has a copy to compare."""
    own = rank._measure_memory

    def measure_memory(**words: Any) -> dict[str, Any]:
        with torch.no_grad():
            next(iter(rank.weights.given.values())).mul_(1.01)
        return own(**words)

    rank._measure_memory = measure_memory  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[RankWorker], None]] = {
    "positions": shift_positions,
    "frequencies": change_frequencies,
    "stale": skip_steps,
    "changed": change_weights,
}


def plant_fault(name: str) -> None:
    """Let ranks of this process have a fault from the start."""
    start = RankWorker.__init__

    def start_with_fault(self: RankWorker, *given: Any) -> None:
        start(self, *given)
        FAULTS[name](self)

    RankWorker.__init__ = start_with_fault  # type: ignore[method-assign]


if __name__ == "__main__":
    plant_fault(sys.argv[2])
    code = main()
    sys.stderr.flush()
    os._exit(code)
