"""Reduction of terms per action token to one number, for a minibatch or a part of it.

Every mean of the library is a weighted sum over action tokens whose weights add up to 1 over the
minibatch:

    token_mean        1 / N                  N action tokens
    step_mean         1 / (S · L_t)          S steps of L_t tokens
    trajectory_mean   1 / (J · N_j)          J trajectories of N_j tokens

Only trained tokens (`loss_mask`) count, in N, L_t and N_j alike; a step or trajectory without any
is not counted in S or J. A minibatch without any trained token is refused: it has no mean.

A microbatch divides by the counts of the `MinibatchCounts` it is part of. Losses and metrics of the
microbatches (and ranks) of one minibatch therefore *add up* to those of the minibatch, whatever
the split, and so do their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from stepwell.algos.checks import check_mask
from stepwell.algos.scalar_checks import check_choice
from stepwell.algos.segments import Segments
from stepwell.algos.timeline import Timeline
from stepwell.core.errors import InputError

Aggregate = Literal["token_mean", "step_mean", "trajectory_mean"]
Unit = Literal["token", "step", "trajectory"]
AGGREGATES: tuple[Aggregate, ...] = ("token_mean", "step_mean", "trajectory_mean")
UNITS: tuple[Unit, ...] = ("token", "step", "trajectory")


@dataclass(frozen=True, eq=False)
class MinibatchCounts:
    """Counts of a minibatch that its microbatches divide by.

    num_tokens             trained action tokens
    num_steps              steps with at least one of them
    num_pairs              preference pairs (DPO)
    tokens_per_trajectory  [trajectory of the minibatch] trained action tokens
    returns                [trajectory of the minibatch] return of the whole trajectory
    trajectories           [trajectory of the microbatch] its place in the minibatch
    """

    num_tokens: int
    num_steps: int
    num_pairs: int
    tokens_per_trajectory: Tensor
    returns: Tensor
    trajectories: Tensor

    @classmethod
    def of(
        cls, timeline: Timeline, loss_mask: Tensor | None = None, pairs: Tensor | None = None
    ) -> MinibatchCounts:
        """The counts of a timeline that is itself the whole minibatch."""
        tokens_per_step, tokens_per_trajectory = count_trained_tokens(timeline, loss_mask)
        return cls(
            num_tokens=int(tokens_per_step.sum()),
            num_steps=int((tokens_per_step > 0).sum()),
            num_pairs=0 if pairs is None else pairs.shape[0],
            tokens_per_trajectory=tokens_per_trajectory,
            returns=timeline.returns,
            trajectories=torch.arange(timeline.num_trajectories, device=timeline.rewards.device),
        )

    @property
    def num_trajectories(self) -> int:
        return int((self.tokens_per_trajectory > 0).sum())


def count_trained_tokens(timeline: Timeline, loss_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Trained action tokens per step and per trajectory."""
    if loss_mask is None:
        return timeline.tokens_per_step, timeline.tokens_by_trajectory.lengths
    # float64 counts exactly; segment sums take no integers
    trained = loss_mask.double()
    return timeline.tokens_by_step.sum(trained).long(), timeline.tokens_by_trajectory.sum(trained).long()


@dataclass(frozen=True, eq=False)
class Reduction:
    """Sums, means and weights over the trained action tokens of one (micro)batch."""

    timeline: Timeline
    dtype: torch.dtype
    loss_mask: Tensor | None = None
    part_of: MinibatchCounts | None = None

    def __post_init__(self) -> None:
        if self.loss_mask is not None:
            device = self.timeline.rewards.device
            check_mask("loss_mask", self.loss_mask, self.timeline.num_tokens, "action token", device)
        if self.part_of is not None and len(self.part_of.trajectories) != self.timeline.num_trajectories:
            raise InputError(
                f"minibatch: names {len(self.part_of.trajectories)} trajectories, the timeline has "
                f"{self.timeline.num_trajectories}; build microbatches with LossInputs.microbatch"
            )
        if self.minibatch.num_tokens == 0:
            raise InputError(
                "loss_mask: selects no action token of the whole minibatch; skip the update instead"
            )

    @cached_property
    def minibatch(self) -> MinibatchCounts:
        return self.part_of or MinibatchCounts.of(self.timeline, self.loss_mask)

    @cached_property
    def _counts(self) -> tuple[Tensor, Tensor]:
        return count_trained_tokens(self.timeline, self.loss_mask)

    def _find_segments(self, unit: Unit) -> tuple[Segments, Tensor]:
        if unit == "step":
            return self.timeline.tokens_by_step, self._counts[0]
        whole = self.minibatch.tokens_per_trajectory[self.minibatch.trajectories]
        if not torch.equal(whole, self._counts[1]):
            raise InputError(
                "ratio: a trajectory ratio needs all tokens of a trajectory in one microbatch; "
                "split the minibatch between trajectories"
            )
        return self.timeline.tokens_by_trajectory, self._counts[1]

    def zero_untrained(self, x: Tensor) -> Tensor:
        """[token]: x where trained, 0 elsewhere."""
        return x if self.loss_mask is None else torch.where(self.loss_mask, x, 0.0)

    def average_by_unit(self, x: Tensor, unit: Unit) -> Tensor:
        """[token] -> [token]: the mean of x over the trained tokens of the unit each token is in."""
        if unit == "token":
            return x
        segments, counts = self._find_segments(unit)
        return segments.expand(segments.sum(self.zero_untrained(x)) / counts.clamp(min=1))

    def step_sum(self, x: Tensor) -> Tensor:
        """[token] -> [step]: the sum of x over the trained tokens of each step."""
        return self.timeline.tokens_by_step.sum(self.zero_untrained(x))

    def step_mean(self, x: Tensor) -> Tensor:
        """[token] -> [step]: the mean of x over the trained tokens of each step (0 without any)."""
        return self.step_sum(x) / self.tokens_per_step.clamp(min=1)

    @property
    def tokens_per_step(self) -> Tensor:
        """[step]: trained action tokens."""
        return self._counts[0]

    def step_weights(self) -> Tensor:
        """[step]: 1 / S for every step with a trained token."""
        return (self.tokens_per_step > 0).to(self.dtype) / self.minibatch.num_steps

    def token_weights(self, aggregate: Aggregate) -> Tensor:
        """[token]: the weights of the table above."""
        check_choice("aggregate", aggregate, AGGREGATES)
        if aggregate == "token_mean":
            ones = torch.ones(self.timeline.num_tokens, dtype=self.dtype, device=self.timeline.rewards.device)
            return self.zero_untrained(ones / self.minibatch.num_tokens)
        if aggregate == "step_mean":
            per_token = self.step_weights() / self.tokens_per_step.clamp(min=1)
            return self.zero_untrained(self.timeline.steps_to_tokens(per_token))
        counts = self.minibatch.tokens_per_trajectory[self.minibatch.trajectories]
        per_token = 1.0 / (self.minibatch.num_trajectories * counts.clamp(min=1).to(self.dtype))
        return self.zero_untrained(self.timeline.tokens_by_trajectory.expand(per_token))
