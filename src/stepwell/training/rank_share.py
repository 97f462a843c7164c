"""How a batch is shared among ranks: rounds of microbatches of about equal size.

    microbatches by size   9  8  8  5  4  4  2      3 ranks
    rounds                [9  8  8][5  4  4][2]      the last one leaves two ranks without work

All ranks run a round together, because sharded layers are gathered from all of them. Its members are of about
equal size, so that nobody waits long. A rank without a microbatch of its own runs a stand-in, whose outputs
are dropped and whose gradient is zero.

Invariant: trainer and ranks deal out alike, from the packed batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.packing import PackedArrays
from stepwell.packing.tree import IntArray
from stepwell.training.batch import TrajectoryMinibatch

_FINER = 1.15
_TRIES = 8


def deal_rounds(microbatches: list[Any], size: int) -> list[list[int]]:
    """Per round the numbers of its microbatches, that of rank 0 first; ranks may be left without one."""
    order = sorted(range(len(microbatches)), key=lambda number: (-count_work(microbatches[number]), number))
    return [order[start : start + size] for start in range(0, len(order), size)]


def count_work(microbatch: Any) -> int:
    """Tokens of a language agent's microbatch, states of a robot's."""
    return int(microbatch.num_states if hasattr(microbatch, "num_states") else microbatch.num_tokens)


@dataclass(eq=False)
class RankRound:
    """Microbatches that the ranks run at once: to a loss, one microbatch with all their steps."""

    batch: int
    which: str
    number: int
    members: list[Any]
    cache: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steps = np.sort(np.concatenate([one.steps for one in self.members]))
        self.orders: dict[str, npt.NDArray[np.int64]] = {}
        for kind in ("logprob_indices", "value_indices"):
            joined = np.concatenate([getattr(one, kind) for one in self.members])
            self.orders[kind] = np.argsort(joined, kind="stable").astype(np.int64)
            setattr(self, kind, joined[self.orders[kind]])

    logprob_indices: IntArray = field(init=False)
    value_indices: IntArray = field(init=False)

    @property
    def num_tokens(self) -> int:
        """Work of all members."""
        return sum(map(count_work, self.members))


@dataclass(eq=False)
class RankShare:
    """The microbatches of rank `rank` of `size` in one prepared batch."""

    microbatches: list[Any]
    rank: int
    size: int

    def __post_init__(self) -> None:
        self.rounds = deal_rounds(self.microbatches, self.size)
        works = [count_work(microbatch) for microbatch in self.microbatches]
        self._stand_in = works.index(min(works))

    def find_microbatch(self, number: int) -> tuple[Any, bool]:
        """The microbatch of this rank in a round, and whether it is its own or a stand-in."""
        members = self.rounds[number]
        is_own = self.rank < len(members)
        return self.microbatches[members[self.rank] if is_own else self._stand_in], is_own


def cut_for_ranks(minibatch: TrajectoryMinibatch, size: int) -> TrajectoryMinibatch:
    """Cut the minibatch into more microbatches, so that all ranks have about equal work if possible."""
    if size == 1:  # it is packed as soon as the rank packs it too
        return minibatch
    packed = minibatch.packed
    count = -(-len(packed.microbatches) // size) * size
    if len(packed.microbatches) == count:
        return minibatch
    if isinstance(packed, PackedArrays):
        return replace(minibatch, micro_batch=-(-len(packed) // count))
    budget, limit = max(packed.longest, -(-packed.num_tokens // count)), packed.token_budget
    for _ in range(_TRIES):
        finer = replace(minibatch, token_budget=budget)
        if len(finer.packed.microbatches) <= count:  # a single extra microbatch would occupy one rank only
            break
        budget = int(budget * _FINER) + 1 if limit is None else min(int(budget * _FINER) + 1, limit)
    return finer
