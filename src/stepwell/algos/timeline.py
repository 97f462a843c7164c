"""The flat batch of ragged trajectories that every credit function and loss reads.

Layout: everything is stored flat, in (trajectory, step, token) order. Two length tensors say how
it folds back: `steps_per_trajectory` [trajectory] and `tokens_per_step` [step]. Only action tokens
appear; observation tokens receive neither advantage, loss nor KL. (The `vanilla-ppo` recipe, which
trains on observations on purpose, counts them as action tokens when it builds its timeline.)

A critic is read at L_t + 1 *sites* of a step with L_t action tokens: position i < L_t is the value
before action token i (position 0 is V(s_t), read at the last state token), position L_t is u_t,
the value after the last action token. `token_values` holds positions 0..L_t-1, `end_values`
position L_t. When the critic was read at the last state token only, give `state_values` instead
of `token_values`.

Invariants, checked on construction:
* there is at least one trajectory, every trajectory has a step, every step an action token. A step
  without action has nothing to credit: its value belongs in `bootstrap`, or it is left out;
* all numbers are finite, on one device, in one dtype (float32 or float64), that of `rewards`;
* optional parts that are absent are None, never a guess. A function that needs one says so.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from stepwell.algos.checks import check_floats, check_integers
from stepwell.algos.nested import (
    count_steps,
    find_lengths,
    flatten_steps,
    flatten_tokens,
    flatten_trajectories,
    label_ids,
    make_floats,
)
from stepwell.algos.segments import Segments
from stepwell.core.errors import InputError

_FLOAT_FIELDS = {
    "rewards": "step",
    "token_values": "action token",
    "end_values": "step",
    "state_values": "step",
    "token_rewards": "action token",
    "bootstrap": "trajectory",
    "instruction_values": "trajectory",
}
_LABEL_FIELDS = {"groups": "trajectory", "anchors": "step"}


@dataclass(frozen=True, eq=False)
class Timeline:
    """A batch of trajectories, flat.

    Two trajectories, of two steps and one step, with 2, 3 and 1 action tokens:

        steps_per_trajectory   [2, 1]
        tokens_per_step        [2, 3, 1]
        rewards                [0., 1., 0.]                  one per step
        token_values           [.2, .3, .4, .5, .6, .1]      one per action token
    """

    steps_per_trajectory: Tensor
    tokens_per_step: Tensor
    rewards: Tensor
    token_values: Tensor | None = None
    end_values: Tensor | None = None
    state_values: Tensor | None = None
    token_rewards: Tensor | None = None
    bootstrap: Tensor | None = None
    groups: Tensor | None = None
    anchors: Tensor | None = None
    instruction_values: Tensor | None = None

    def __post_init__(self) -> None:
        self._check_layout()
        sizes = {"trajectory": self.num_trajectories, "step": self.num_steps, "action token": self.num_tokens}
        for name, per in _FLOAT_FIELDS.items():
            value = getattr(self, name)
            if value is None and name != "rewards":
                continue
            check_floats(name, value, sizes[per], per, self.tokens_per_step.device)
            if value.dtype != self.rewards.dtype:
                raise InputError(
                    f"{name}: {value.dtype}, but rewards are {self.rewards.dtype}; use one dtype"
                )
        for name, per in _LABEL_FIELDS.items():
            if (value := getattr(self, name)) is not None:
                check_integers(name, value, sizes[per], per, self.tokens_per_step.device)
        if self.token_values is not None and self.state_values is not None:
            raise InputError(
                "state_values: token_values hold V(s_t) already (position 0 of each step); give one of them"
            )

    def _check_layout(self) -> None:
        steps = check_integers("steps_per_trajectory", self.steps_per_trajectory, None, "trajectory")
        tokens = check_integers("tokens_per_step", self.tokens_per_step, None, "step", steps.device)
        _check_lengths("steps_per_trajectory", steps, "step")
        _check_lengths("tokens_per_step", tokens, "action token")
        if (counted := int(steps.sum())) != self.num_steps:
            raise InputError(
                f"steps_per_trajectory: sums to {counted}, but tokens_per_step lists {self.num_steps} steps"
            )

    # Sizes

    @property
    def num_trajectories(self) -> int:
        return self.steps_per_trajectory.shape[0]

    @property
    def num_steps(self) -> int:
        return self.tokens_per_step.shape[0]

    @cached_property
    def num_tokens(self) -> int:
        return int(self.tokens_per_step.sum())

    # How the flat tensors fold back

    @cached_property
    def steps_by_trajectory(self) -> Segments:
        return Segments(self.steps_per_trajectory, self.num_steps)

    @cached_property
    def tokens_by_step(self) -> Segments:
        return Segments(self.tokens_per_step, self.num_tokens)

    @cached_property
    def tokens_by_trajectory(self) -> Segments:
        ends = self.tokens_per_step.cumsum(0)[self.steps_by_trajectory.last]
        return Segments(ends.diff(prepend=ends.new_zeros(1)), self.num_tokens)

    def steps_to_tokens(self, x: Tensor) -> Tensor:
        """[step] -> [token]: every action token gets its step's number."""
        return self.tokens_by_step.expand(x)

    def trajectories_to_steps(self, x: Tensor) -> Tensor:
        """[trajectory] -> [step]"""
        return self.steps_by_trajectory.expand(x)

    # Quantities of the formulas

    @cached_property
    def returns(self) -> Tensor:
        """[trajectory]: R, the undiscounted sum of step rewards."""
        return self.steps_by_trajectory.sum(self.rewards)

    @cached_property
    def outcomes(self) -> Tensor:
        """[trajectory]: r_{T-1}, the reward of the last step."""
        return self.rewards[self.steps_by_trajectory.last]

    def read_bootstrap(self) -> Tensor:
        """[trajectory]: value of the state after the last step, zero unless given."""
        if self.bootstrap is None:
            return self.rewards.new_zeros(self.num_trajectories)
        return self.bootstrap

    def read_token_rewards(self) -> Tensor:
        """[token]: k, the token rewards, zero unless given."""
        return self.rewards.new_zeros(self.num_tokens) if self.token_rewards is None else self.token_rewards

    def read_token_values(self) -> Tensor:
        """[token]: v_{t,i}."""
        return self._require("token_values", "read the critic before every action token")

    def read_state_values(self) -> Tensor:
        """[step]: V(s_t)."""
        if self.token_values is not None:
            return self.token_values[self.tokens_by_step.first]
        return self._require("state_values", "read the critic at the last state token (or give token_values)")

    def read_end_values(self) -> Tensor:
        """[step]: u_t."""
        return self._require("end_values", "read the critic after the last action token of every step")

    def read_instruction_values(self) -> Tensor:
        """[trajectory]: the instruction-level critic of DigiRL."""
        return self._require("instruction_values", "read the instruction critic once per trajectory")

    def read_group_labels(self) -> Tensor:
        """[trajectory]: which trajectories are siblings on one task."""
        return self._require("groups", "label each trajectory with its task")

    def read_anchor_labels(self) -> Tensor:
        """[step]: which steps saw the same observation."""
        return self._require("anchors", "label each step with the key of its observation")

    def _require(self, name: str, fix: str) -> Tensor:
        value: Tensor | None = getattr(self, name)
        if value is None:
            raise InputError(f"{name}: missing, and this function needs it; {fix}")
        return value

    # Critic sites

    @cached_property
    def state_sites(self) -> Tensor:
        """[step, 2]: (step, 0) for every step."""
        steps = torch.arange(self.num_steps, device=self.rewards.device)
        return torch.stack([steps, torch.zeros_like(steps)], dim=1)

    @cached_property
    def end_sites(self) -> Tensor:
        """[step, 2]: (step, L_t) for every step."""
        return torch.stack([self.state_sites[:, 0], self.tokens_per_step], dim=1)

    @cached_property
    def token_sites(self) -> Tensor:
        """[token, 2]: (step, position) before every action token."""
        return torch.stack([self.tokens_by_step.index, self.tokens_by_step.position], dim=1)

    def index_sites(self, sites: Tensor) -> Tensor:
        """Where each (step, position) lies when the L_t + 1 values of all steps are put end to end."""
        return self.tokens_by_step.first[sites[:, 0]] + sites[:, 0] + sites[:, 1]

    # Making one from another form

    def take_steps(self, steps: Tensor) -> Timeline:
        """The given steps (flat, ascending) as a timeline of their own: a microbatch for the losses.

        Trajectories may come apart, so credit is computed before, on the whole.
        """
        self.check_steps(steps)
        chosen = torch.zeros_like(self.tokens_per_step, dtype=torch.bool).index_fill(0, steps, True)
        counts = self.steps_by_trajectory.sum(chosen.double()).long()
        index = {"step": steps, "trajectory": counts.nonzero()[:, 0]}
        index["action token"] = self.steps_to_tokens(chosen).nonzero()[:, 0]
        parts: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[index[per]]
            for name, per in (_FLOAT_FIELDS | _LABEL_FIELDS).items()
        }
        return Timeline(counts[index["trajectory"]], self.tokens_per_step[steps], **parts)

    def check_steps(self, steps: Tensor) -> None:
        """`steps` are flat step indices of this timeline, ascending, none twice."""
        check_integers("steps", steps, None, "step", self.rewards.device)
        if steps.shape[0] == 0:
            raise InputError("steps: empty; leave an empty microbatch out")
        if bool((steps.diff() < 1).any()) or int(steps[0]) < 0 or int(steps[-1]) >= self.num_steps:
            raise InputError(f"steps: must be ascending, without repeats, within 0..{self.num_steps - 1}")

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Timeline:
        """The same batch on another device, or with its numbers in another dtype."""

        def move(value: Tensor | None) -> Tensor | None:
            if value is None:
                return None
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

        moved: dict[str, Any] = {field.name: move(getattr(self, field.name)) for field in fields(self)}
        return Timeline(**moved)

    @classmethod
    def from_lists(
        cls,
        rewards: Sequence[Sequence[float | None]],
        token_values: Sequence[Sequence[Sequence[float]]] | None = None,
        end_values: Sequence[Sequence[float]] | None = None,
        token_rewards: Sequence[Sequence[Sequence[float]]] | None = None,
        bootstrap: Sequence[float] | None = None,
        groups: Sequence[Hashable] | None = None,
        anchors: Sequence[Sequence[Hashable]] | None = None,
        *,
        instruction_values: Sequence[float] | None = None,
        state_values: Sequence[Sequence[float]] | None = None,
        tokens_per_step: Sequence[Sequence[int]] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Timeline:
        """The nested form, for people and tests; `dtype` defaults to torch's default.

        Action lengths come from `token_values` or `token_rewards`, else from `tokens_per_step`;
        when none of them is given every action has one token. Labels in `groups` and `anchors`
        may be anything hashable; an anchor of None equals no other anchor.
        """
        steps = count_steps(rewards)
        lengths = find_lengths(steps, token_values, token_rewards, tokens_per_step)
        like = torch.empty(0, dtype=dtype, device=device)

        def per_trajectory(name: str, values: Sequence[Any] | None) -> Tensor | None:
            return make_floats(name, flatten_trajectories(name, values, steps), like)

        def per_step(name: str, values: Sequence[Sequence[Any]] | None) -> Tensor | None:
            return make_floats(name, flatten_steps(name, values, steps), like)

        def per_token(name: str, values: Sequence[Sequence[Sequence[float]]] | None) -> Tensor | None:
            return make_floats(name, flatten_tokens(name, values, steps, lengths), like)

        step_rewards = per_step("rewards", rewards)
        assert step_rewards is not None
        group_names = flatten_trajectories("groups", groups, steps)
        anchor_names = flatten_steps("anchors", anchors, steps, allow_none=True)
        return cls(
            steps_per_trajectory=torch.tensor(steps, dtype=torch.int64, device=device),
            tokens_per_step=torch.tensor(lengths, dtype=torch.int64, device=device),
            rewards=step_rewards,
            token_values=per_token("token_values", token_values),
            end_values=per_step("end_values", end_values),
            state_values=per_step("state_values", state_values),
            token_rewards=per_token("token_rewards", token_rewards),
            bootstrap=per_trajectory("bootstrap", bootstrap),
            groups=None if group_names is None else label_ids(group_names, device),
            anchors=None if anchor_names is None else label_ids(anchor_names, device),
            instruction_values=per_trajectory("instruction_values", instruction_values),
        )


def _check_lengths(name: str, lengths: Tensor, inner: str) -> None:
    if lengths.shape[0] == 0:
        raise InputError(f"{name}: the batch is empty; skip the update instead")
    if bool((lengths < 1).any()):
        where = int(torch.nonzero(lengths < 1)[0])
        raise InputError(
            f"{name}: entry {where} is {int(lengths[where])}; each needs at least one {inner}. "
            "Leave an empty one out (a step that has only a value belongs in bootstrap)"
        )
