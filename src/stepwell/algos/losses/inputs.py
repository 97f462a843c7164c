"""The inputs of a policy loss.

All tensors are flat, one number per action token, in the order of the timeline. Only
`policy_logprobs` carry gradient; everything else is detached on use and converted to the dtype of
`policy_logprobs` (float32 or float64), in which the loss is computed.

Invariants, checked on construction: every tensor given is finite, of the timeline's length, on its device. A
loss that needs an absent one raises an `InputError` that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from stepwell.algos.checks import check_floats
from stepwell.algos.losses.reduction import MinibatchCounts, Reduction
from stepwell.algos.timeline import Timeline
from stepwell.core.errors import InputError

Metrics = dict[str, Tensor]  # detached 0-dim tensors; those of microbatches add up


@dataclass(frozen=True, eq=False)
class LossInputs:
    """One (micro)batch for a policy loss.

    policy_logprobs     [token]    of the policy being trained
    behavior_logprobs   [token]    of the engine that sampled, at sampling time
    advantages          [token]    `CreditResult.advantages`
    ref_logprobs        [token]    of the frozen reference
    proximal_logprobs   [token]    of the trainer's policy at the start of the update
    loss_mask           [token]    True = trained; all if None
    pairs               [pair, 2]  (chosen, rejected) flat steps, for `dpo_loss`
    minibatch           set by `microbatch`; None when this is the whole minibatch
    """

    timeline: Timeline
    policy_logprobs: Tensor
    behavior_logprobs: Tensor | None = None
    advantages: Tensor | None = None
    ref_logprobs: Tensor | None = None
    proximal_logprobs: Tensor | None = None
    loss_mask: Tensor | None = None
    pairs: Tensor | None = None
    minibatch: MinibatchCounts | None = None

    def __post_init__(self) -> None:
        for name in _TOKEN_FIELDS:
            value = getattr(self, name)
            if value is None and name != "policy_logprobs":
                continue
            check_floats(name, value, self.timeline.num_tokens, "action token", self.timeline.rewards.device)
        if self.pairs is not None:
            _check_pairs(self.pairs, self.timeline)
        _ = self.reduction  # checks loss_mask and minibatch

    @cached_property
    def reduction(self) -> Reduction:
        return Reduction(self.timeline, self.policy_logprobs.dtype, self.loss_mask, self.minibatch)

    def read_behavior(self) -> Tensor:
        return self._require("behavior_logprobs", "take them from the engine that sampled the actions")

    def read_advantages(self) -> Tensor:
        return self._require("advantages", "compute them with a credit function")

    def read_reference(self) -> Tensor:
        return self._require("ref_logprobs", "run the frozen reference over the same actions")

    def read_proximal(self) -> Tensor:
        return self._require("proximal_logprobs", "run the trainer's policy once before the update")

    def _require(self, name: str, fix: str) -> Tensor:
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError(f"{name}: missing, and this loss needs it; {fix}")
        return value.detach().to(self.policy_logprobs.dtype)

    def microbatch(self, steps: Tensor, policy_logprobs: Tensor) -> LossInputs:
        """The part of this minibatch made of `steps` (flat, ascending), with its own logprobs.

        Losses of the parts add up to the loss of the whole. The `policy_logprobs` of the
        minibatch itself are not read, so anything of the right size may stand in for them.
        """
        if self.minibatch is not None:
            raise InputError("minibatch: this is a microbatch already; split the whole minibatch instead")
        part = self.timeline.take_steps(steps)
        chosen = torch.zeros_like(self.timeline.tokens_per_step, dtype=torch.bool).index_fill(0, steps, True)
        tokens = self.timeline.steps_to_tokens(chosen)
        whole = MinibatchCounts.of(self.timeline, self.loss_mask, self.pairs)
        own = torch.unique_consecutive(self.timeline.steps_by_trajectory.index[steps])
        fields = {
            name: None if getattr(self, name) is None else getattr(self, name)[tokens]
            for name in (*_TOKEN_FIELDS[1:], "loss_mask")
        }
        return LossInputs(
            part,
            policy_logprobs,
            pairs=self._select_pairs(chosen),
            minibatch=replace(whole, trajectories=own),
            **fields,
        )

    def _select_pairs(self, chosen: Tensor) -> Tensor | None:
        """The pairs among the chosen steps, renumbered."""
        if self.pairs is None:
            return None
        inside = chosen[self.pairs]
        if bool((inside[:, 0] != inside[:, 1]).any()):
            raise InputError(
                "steps: they separate a chosen step from its rejected one; keep both steps of a pair together"
            )
        return (chosen.long().cumsum(0) - 1)[self.pairs[inside[:, 0]]]


_TOKEN_FIELDS = ("policy_logprobs", "behavior_logprobs", "advantages", "ref_logprobs", "proximal_logprobs")


def _check_pairs(pairs: Tensor, timeline: Timeline) -> None:
    if not isinstance(pairs, Tensor) or pairs.dtype != torch.int64 or pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InputError("pairs: expected an int64 tensor [pair, 2] of (chosen, rejected) flat steps")
    if pairs.device != timeline.rewards.device:
        raise InputError(
            f"pairs: lives on {pairs.device}, the timeline on {timeline.rewards.device}; use .to()"
        )
    if pairs.numel() and (int(pairs.min()) < 0 or int(pairs.max()) >= timeline.num_steps):
        raise InputError(f"pairs: flat step out of range; the timeline has steps 0..{timeline.num_steps - 1}")
    if timeline.anchors is not None and not torch.equal(*timeline.anchors[pairs].unbind(1)):
        raise InputError(
            "pairs: a pair has steps of different anchors; both must have acted on the same state"
        )
