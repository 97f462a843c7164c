"""One rank's share of a batch: its microbatches, their outputs and their gradients.

Microbatches are dealt out in turn: rank r of n runs r, r + n, r + 2n, … A rank may have none. A rank writes
its outputs into an array of the whole batch, with zeros elsewhere. The sum over all ranks is then the output
of the whole batch, bit for bit as computed by each rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from stepwell.packing import Outputs, PackedArrays
from stepwell.packing.gradient import pull_gradients
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.policy import Policy

_FINER = 1.15
_TRIES = 8


@dataclass(eq=False)
class RankShare:
    """The work of rank `rank` of `size` on one minibatch."""

    policy: Policy
    minibatch: TrajectoryMinibatch
    rank: int
    size: int
    _kept: Outputs | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        packed = self.policy.prepare_batch(self.minibatch.packed)
        self.microbatches = packed.microbatches[self.rank :: self.size]
        self.num_logprobs = sum(packed.action_lengths)
        self.num_values = self.num_logprobs + len(packed)

    def output_lengths(self, wanted: dict[str, bool]) -> list[int]:
        """Lengths of the requested outputs over the whole batch."""
        sizes = {"values": self.num_values}
        return [sizes.get(kind, self.num_logprobs) for kind, is_wanted in wanted.items() if is_wanted]

    def compute_outputs(
        self, wanted: dict[str, bool], *, with_reference: bool = False, keep: bool = False
    ) -> Tensor:
        """This rank's outputs in their places, one kind after the other, as float64 (exact for narrower
        types).

        With `keep`, the graph of a single microbatch is kept, so that `pull_back` need not run it again.
        """
        keeps = keep and len(self.microbatches) == 1
        lengths = self.output_lengths(wanted)
        flat = torch.zeros(sum(lengths), dtype=torch.float64, device=self.policy.device)
        rows = torch.split(flat, lengths)
        with _as_reference(self.policy, with_reference), torch.set_grad_enabled(keeps):
            for microbatch in self.microbatches:
                found = self.policy.run(microbatch, **wanted)
                kinds = [kind for kind, is_wanted in wanted.items() if is_wanted]
                for kind, row, part in zip(kinds, rows, found.list_present(), strict=True):
                    slots = microbatch.value_indices if kind == "values" else microbatch.logprob_indices
                    row[torch.from_numpy(slots).to(row.device)] = part.detach().double()
                self._kept = found if keeps else None
        return flat

    def pull_back(self, pulls: Tensor, wanted: dict[str, bool]) -> None:
        """Add the contribution of this rank's microbatches to the gradients."""
        parts = torch.split(pulls, self.output_lengths(wanted))
        for microbatch in self.microbatches:
            found = self._kept or self.policy.run(microbatch, **wanted)
            kinds = found.list_present()
            narrow = tuple(part.to(kind.dtype) for part, kind in zip(parts, kinds, strict=True))
            pull_gradients(found, microbatch, narrow, wanted)
            self._kept = None


@contextmanager
def _as_reference(policy: Policy, is_wanted: bool) -> Iterator[None]:
    """Use the weights of the frozen reference inside this block."""
    if not is_wanted:
        yield
    elif policy.reference is None:
        with policy.adapters.disable_adapter():
            yield
    else:
        model, policy.model = policy.model, policy.reference
        try:
            yield
        finally:
            policy.model = model


def cut_for_ranks(minibatch: TrajectoryMinibatch, size: int) -> TrajectoryMinibatch:
    """Cut the minibatch into more microbatches, so that all ranks have about equal work if possible."""
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
