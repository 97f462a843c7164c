"""What every policy computes of packed steps: logprobs, values and entropies, per step.

A policy gives `prepare_batch` and `run` (one microbatch), its way of packing steps and an action without
units. The rest is the same for language and for robots. NaN is an error everywhere.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from stepwell.core import Action, ConfigError, State, Step
from stepwell.core.arrays import FloatArray
from stepwell.packing import Outputs, Packed, PackedArrays, check_finite, evaluate
from stepwell.policies.critic import CriticModel

P = TypeVar("P", bound="Packed | PackedArrays")


class StepScorer(ABC, Generic[P]):
    """Outputs of steps, from the passes of a policy."""

    critic: CriticModel | None
    instruction_critic: CriticModel | None

    @abstractmethod
    def prepare_batch(self, packed: P) -> P:
        """Check the batch against this model, and lay it out the way this model runs it."""

    @abstractmethod
    def run(self, microbatch: Any, *, logprobs: bool, values: bool, entropies: bool) -> Outputs:
        """Compute the outputs of one microbatch, in its own order."""

    @abstractmethod
    def _pack_steps(self, steps: Sequence[Step]) -> P: ...

    @abstractmethod
    def _make_empty_action(self) -> Action: ...

    def logprobs(self, packed: P) -> list[Tensor]:
        """Compute, per step, the logprob of each action unit."""
        return split_by_step(self.evaluate(packed).logprobs, packed.action_lengths)

    def entropies(self, packed: P) -> list[Tensor]:
        """Compute, per step, the entropy of the distribution of each action unit."""
        outputs = self.evaluate(packed, logprobs=False, entropies=True)
        return split_by_step(outputs.entropies, packed.action_lengths)

    def values(self, packed: P) -> list[Tensor]:
        """Compute L+1 values per step: before each action unit, then after the last."""
        outputs = self.evaluate(packed, logprobs=False, values=True).values
        assert outputs is not None and self.critic is not None
        lengths = [length + 1 for length in packed.action_lengths]
        return split_by_step(self.critic.read_values(outputs), lengths)

    def evaluate(
        self, packed: P, *, logprobs: bool = True, values: bool = False, entropies: bool = False
    ) -> Outputs:
        """Compute everything that is asked for in one pass: flat, in step order."""
        outputs = evaluate(self, packed, logprobs=logprobs, values=values, entropies=entropies)
        check_finite(outputs)
        return outputs

    def score(self, steps: Sequence[Step]) -> list[FloatArray]:
        """Compute logprobs of actions already taken, as arrays (`core.Scorer`)."""
        with torch.no_grad():
            return [part.float().cpu().numpy() for part in self.logprobs(self._pack_steps(steps))]

    def state_values(self, states: Sequence[State]) -> FloatArray:
        """Compute V(s) of each state (`core.Critic`)."""
        nothing, none = self._make_empty_action(), np.zeros(0, dtype=np.float32)
        steps = [Step(state, nothing, behavior_logprobs=none) for state in states]
        with torch.no_grad():
            return torch.cat(self.values(self._pack_steps(steps))).float().cpu().numpy()

    def read_instructions(self) -> Self:
        """Return this policy with the critic of instructions in place of the critic; weights are shared."""
        if self.instruction_critic is None:
            raise ConfigError("this policy has no critic of instructions; call add_instruction_critic")
        policy = copy.copy(self)
        policy.critic = self.instruction_critic
        return policy


def split_by_step(flat: Tensor | None, lengths: list[int]) -> list[Tensor]:
    """Split outputs of a batch into those of its steps."""
    assert flat is not None, "it was asked for"
    return list(torch.split(flat, lengths))
