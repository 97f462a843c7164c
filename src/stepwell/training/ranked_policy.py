"""A policy that several ranks run together, as the trainer sees it: an `Evaluator` like any other.

    packed batch ─► rounds (`rank_share.py`) ─► run: forward on all ranks ─► outputs of the round
    loss on them ─► its gradient reaches the outputs ─► backward on all ranks

A round is to the trainer what a microbatch is: outputs with a graph behind them, whose backward pass runs on
the ranks. So everything that is computed with one device (losses that couple a batch, losses in parts,
critics, the reference) is computed the same way here. Weights and outputs of the policy itself stay in the
trainer's process, on the host; the ranks have their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stepwell.algos.recipes import Recipe
from stepwell.core import ConfigError, Step
from stepwell.packing import Outputs, check_finite, evaluate
from stepwell.policies.step_scorer import StepScorer, split_by_step
from stepwell.training.batch import TrajectoryMinibatch
from stepwell.training.policy import Policy
from stepwell.training.rank_link import read_tensors, view_bytes
from stepwell.training.rank_share import RankRound, deal_rounds
from stepwell.training.ranks import RankAnswer, Ranks

_PLACES = {"logprobs": "logprob_indices", "values": "value_indices", "entropies": "logprob_indices"}


@dataclass(frozen=True, eq=False)
class PackedRounds:
    """A packed batch whose microbatches are rounds."""

    microbatches: list[RankRound]
    action_lengths: list[int]

    def __len__(self) -> int:
        return len(self.action_lengths)


class RankedPolicy(StepScorer[Any]):
    """Runs the minibatches of one update on the ranks."""

    def __init__(self, policy: Policy, ranks: Ranks, minibatches: Sequence[TrajectoryMinibatch]) -> None:
        self.policy, self.ranks = policy, ranks
        self.critic, self.instruction_critic = policy.critic, policy.instruction_critic
        self.with_reference = False
        self._minibatches = list(minibatches)
        self._rounds: dict[tuple[int, str], PackedRounds] = {}
        ranks.take_batches(policy, minibatches)

    def prepare_batch(self, packed: Any) -> PackedRounds:
        """Check the batch, and deal it out in rounds."""
        batch, which = self._find_minibatch(packed)
        if (batch, which) not in self._rounds:
            microbatches = list(self.policy.prepare_batch(packed).microbatches)
            rounds = [
                RankRound(batch, which, number, [microbatches[i] for i in members])
                for number, members in enumerate(deal_rounds(microbatches, self.ranks.size))
            ]
            self._rounds[batch, which] = PackedRounds(rounds, packed.action_lengths)
        return self._rounds[batch, which]

    def _find_minibatch(self, packed: Any) -> tuple[int, str]:
        for number, minibatch in enumerate(self._minibatches):
            for which in ("packed", "first_states"):
                if minibatch.__dict__.get(which) is packed:
                    return number, which
        raise AssertionError("the ranks have not been given this batch")

    def run(self, microbatch: RankRound, *, logprobs: bool, values: bool, entropies: bool) -> Outputs:
        """Outputs of a round, in the order of its steps."""
        wanted = dict(zip(_PLACES, (logprobs, values, entropies), strict=True))
        is_kept = torch.is_grad_enabled() and not self.with_reference
        answers = self.ranks.call(
            "forward",
            batch=microbatch.batch,
            which=microbatch.which,
            number=microbatch.number,
            wanted=wanted,
            with_reference=self.with_reference,
            instructions=self.critic is not None and self.critic is self.instruction_critic,
            keep=is_kept,
        )
        rounds = _RoundOutputs(self.ranks, microbatch, [kind for kind in wanted if wanted[kind]])
        found = rounds.join_answers(answers)
        if is_kept:
            anchor = torch.zeros((), requires_grad=True)
            kept = _RankFunction.apply(anchor, rounds, *found.values())  # type: ignore[no-untyped-call]
            found = dict(zip(found, kept, strict=True))
        return Outputs(*(found.get(kind) for kind in _PLACES))

    def reference_logprobs(self, packed: Any) -> list[Tensor]:
        """Per step, the logprobs of its units under the frozen reference."""
        self.with_reference = True
        try:
            with torch.no_grad():
                outputs = evaluate(self, packed)
        finally:
            self.with_reference = False
        check_finite(outputs)
        return split_by_step(outputs.logprobs, packed.action_lengths)

    def _pack_steps(self, steps: Sequence[Step]) -> Any:
        raise AssertionError("ranks run the minibatches of an update; score single steps with the policy")

    def _make_empty_action(self) -> Any:
        raise AssertionError("ranks run the minibatches of an update; score single states with the policy")


def refuse_full_kl(recipe: Recipe) -> None:
    """Ranks run policy and reference in passes of their own, so none of them knows both distributions."""
    if recipe.needs_full_kl:
        raise ConfigError(
            "recipe.kl_estimator='full' needs one device that runs policy and reference together; give one "
            "device in workers.trainers.devices and train.sharding='none', or use k1, k2 or k3"
        )


class _RoundOutputs:
    """The outputs of one round: from the answers of the ranks, and their gradients back to them."""

    def __init__(self, ranks: Ranks, taken: RankRound, kinds: list[str]) -> None:
        self.ranks, self.taken, self.kinds = ranks, taken, kinds

    def join_answers(self, answers: list[RankAnswer]) -> dict[str, Tensor]:
        """Outputs of all members in the order of the round's steps."""
        parts = [dict(read_tensors(answer.words["tensors"], answer.payload)) for answer in answers]
        joined: dict[str, Tensor] = {}
        for kind in self.kinds:
            whole = torch.cat([part[kind] for part in parts if kind in part])
            joined[kind] = whole[self._read_order(kind)]
        return joined

    def pull_back(self, pulls: Sequence[Tensor]) -> None:
        """Give every rank the gradients of its outputs, and wait until it has used them."""
        in_rank_order = [
            torch.empty_like(pull).index_copy(0, self._read_order(kind), pull).double()
            for kind, pull in zip(self.kinds, pulls, strict=True)
        ]
        members = self.taken.members
        by_kind = [
            torch.split(pull, [len(getattr(member, _PLACES[kind])) for member in members])
            for kind, pull in zip(self.kinds, in_rank_order, strict=True)
        ]
        payloads = [view_bytes(torch.cat(own)) for own in zip(*by_kind, strict=True)]
        lengths = [[len(part) for part in own] for own in zip(*by_kind, strict=True)]
        idle = self.ranks.size - len(members)
        self.ranks.call(
            "backward",
            by_rank=[{"tensors": own} for own in lengths] + [{"tensors": []}] * idle,
            payloads=payloads + [memoryview(b"")] * idle,
        )

    def _read_order(self, kind: str) -> Tensor:
        return torch.from_numpy(self.taken.orders[_PLACES[kind]])


class _RankFunction(torch.autograd.Function):
    """Outputs whose backward pass runs on the ranks."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, rounds: _RoundOutputs, *found: Tensor) -> tuple[Tensor, ...]:
        ctx.rounds = rounds
        return tuple(output.view_as(output) for output in found)

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[None, ...]:
        ctx.rounds.pull_back(pulls)
        return (None,) * (2 + len(pulls))
