"""The result of a credit function: advantages, and targets for the critic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from stepwell.algos.credit.whiten import whiten
from stepwell.algos.nested import fold_list
from stepwell.algos.scalar_checks import check_choice
from stepwell.algos.timeline import Timeline
from stepwell.core.errors import InputError


@dataclass(frozen=True, eq=False)
class CreditResult:
    """Advantages, and targets for the critic.

    advantages           [token]       one per action token: what the losses read
    step_advantages      [step]        None for purely token-level credit; the turn advantage of bi-level
    value_targets        [site]        None for credit without a critic
    value_sites          [site, 2]     (flat step, position 0..L_t) of each target; position L_t is u_t
    keep                 [step] bool   the steps to train on (DigiRL's filter); None: all of them
    instruction_targets  [trajectory]  targets of DigiRL's instruction critic; None elsewhere
    """

    timeline: Timeline
    advantages: Tensor
    step_advantages: Tensor | None = None
    value_targets: Tensor | None = None
    value_sites: Tensor | None = None
    keep: Tensor | None = None
    instruction_targets: Tensor | None = None

    @classmethod
    def of_steps(
        cls,
        timeline: Timeline,
        step_advantages: Tensor,
        *,
        targets: Tensor | None = None,
        sites: Tensor | None = None,
    ) -> CreditResult:
        """Credit that is constant inside a step: broadcast to its action tokens."""
        advantages = timeline.steps_to_tokens(step_advantages)
        return cls(timeline, advantages, step_advantages, value_targets=targets, value_sites=sites)

    @classmethod
    def of_trajectories(cls, timeline: Timeline, trajectory_advantages: Tensor) -> CreditResult:
        """Credit that is constant inside a trajectory: broadcast to its steps and action tokens."""
        return cls.of_steps(timeline, timeline.trajectories_to_steps(trajectory_advantages))

    @property
    def value_index(self) -> Tensor:
        """[site]: where each target's prediction lies in `torch.cat(policy.values(packed))`."""
        if self.value_sites is None:
            raise InputError("value_sites: this credit uses no critic, so there is no value to train")
        return self.timeline.index_sites(self.value_sites)

    @property
    def loss_mask(self) -> Tensor | None:
        """[token]: `keep` for every action token, or None when every step is trained."""
        return None if self.keep is None else self.timeline.steps_to_tokens(self.keep)

    def whiten_advantages(
        self, level: Literal["steps", "tokens"], mask: Tensor | None = None
    ) -> CreditResult:
        """The same result with whitened advantages. `mask` is [step] or [token], as `level` is.

        `"steps"` counts each step once, however long its action. `"tokens"` leaves
        `step_advantages` (if any) as they were.
        """
        check_choice("level", level, ("steps", "tokens"))
        if level == "tokens":
            return replace(self, advantages=whiten(self.advantages, mask))
        if self.step_advantages is None:
            raise InputError("level: token-level credit has no step advantages; whiten over 'tokens'")
        white = whiten(self.step_advantages, mask)
        return replace(self, step_advantages=white, advantages=self.timeline.steps_to_tokens(white))

    def to_lists(self) -> list[list[list[float]]]:
        """Advantages as [trajectory][step][token]."""
        tokens = fold_list(self.advantages.tolist(), self.timeline.tokens_per_step.tolist())
        return fold_list(tokens, self.timeline.steps_per_trajectory.tolist())
