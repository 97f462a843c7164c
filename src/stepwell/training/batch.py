"""One minibatch: trajectories as the tensors of an update, built once and used in every pass.

A minibatch contains whole groups, so that credit that compares siblings has all of them. Its steps
are packed once: by their prefixes for language agents, stacked for robots. The state after a
truncation is added as a step without an action; its one value is the bootstrap.

Of replayed trajectories policy and critic may learn from some steps only (`trained_steps`). Credit still sees
the whole trajectory. Both learn from the same steps: a critic that also learnt from the other steps of
successes would expect more than the policy's data give, and would find its fresh actions bad on average.

Invariant: every step of a minibatch has a reward and at least one action token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stepwell.algos import Timeline
from stepwell.core import (
    ArrayAction,
    ArrayState,
    ConfigError,
    InputError,
    LogprobGaps,
    State,
    Status,
    Step,
    TokenAction,
    TokenState,
    Trajectory,
)
from stepwell.core.logprob_gaps import step_and_token
from stepwell.packing import Packed, PackedArrays, pack, pack_arrays

MIN_RUN = 16
"""Shared prefixes below another that are shorter than this do not get their own branch."""
_NO_TOKENS = TokenAction(np.zeros(0, dtype=np.int32))
_NO_ACTIONS = ArrayAction(np.zeros((0, 0), dtype=np.float32), 0)
_NO_LOGPROBS = np.zeros(0, dtype=np.float32)


@dataclass(eq=False)
class TrajectoryMinibatch:
    """Whole trajectories to learn from in one optimizer step.

    A microbatch has at most `token_budget` tokens of a language agent, or `micro_batch` steps of a
    robot. `seed` is for policies that draw random numbers in training (a flow head that imitates).
    `trained_steps` has, by trajectory id, one bool per step; a trajectory without an entry is learnt from
    completely. Without `replay_teaches_critic`, the critic learns nothing from trajectories with an entry.
    With `keeps_trajectories`, a trajectory that fits the budget is in one microbatch.
    """

    trajectories: Sequence[Trajectory]
    device: torch.device
    token_budget: int | None = None
    with_bootstrap: bool = False
    micro_batch: int | None = None
    seed: int = 0
    trained_steps: Mapping[str, Sequence[bool]] = field(default_factory=dict)
    replay_teaches_critic: bool = True
    keeps_trajectories: bool = False

    @cached_property
    def steps(self) -> list[Step]:
        return [step for trajectory in self.trajectories for step in trajectory.steps]

    @cached_property
    def packed(self) -> Packed | PackedArrays:
        """Every step, then one step without an action for each state after a truncation."""
        cuts = [self._drop_action(state) for state in self._final_states.values()]
        if self._is_robot:
            return pack_arrays([*self.steps, *cuts], micro_batch=self.micro_batch, seed=self.seed)
        return pack(
            [*self.steps, *cuts],
            token_budget=self.token_budget,
            min_run=MIN_RUN,
            units=self._trajectory_numbers if self.keeps_trajectories else None,
        )

    def cut_again(self, token_budget: int) -> None:
        """Take another budget (at least the longest step); outputs and gradients stay the same."""
        assert isinstance(self.packed, Packed)
        self.token_budget = max(token_budget, self.packed.longest)
        for name in ("packed", "first_states"):
            self.__dict__.pop(name, None)

    @property
    def _trajectory_numbers(self) -> list[int]:
        """The trajectory of every packed step; a state after a truncation may be anywhere."""
        count = len(self.trajectories)
        own = [number for number, t in enumerate(self.trajectories) for _ in t.steps]
        return [*own, *range(count, count + len(self._final_states))]

    @cached_property
    def first_states(self) -> Packed | PackedArrays:
        """The first state of every trajectory, as steps without an action: what an instruction is read in."""
        firsts = [self._drop_action(trajectory.steps[0].state) for trajectory in self.trajectories]
        if self._is_robot:
            return pack_arrays(firsts, micro_batch=self.micro_batch)
        return pack(firsts, token_budget=self.token_budget, min_run=MIN_RUN)

    @cached_property
    def timeline(self) -> Timeline:
        """Lengths, rewards, groups and anchors; values come with the first pass."""
        return Timeline(
            steps_per_trajectory=self._to_tensor([len(t.steps) for t in self.trajectories]),
            tokens_per_step=self._to_tensor([step.num_units for step in self.steps]),
            rewards=torch.tensor(
                [_get_reward(step) for step in self.steps], dtype=torch.float32, device=self.device
            ),
            groups=self._number_labels([t.group or t.id for t in self.trajectories]),
            anchors=self._number_labels(
                [
                    f"{t.group}\0{step.anchor}" if step.anchor is not None else f"\0{t.id}\0{i}"
                    for t in self.trajectories
                    for i, step in enumerate(t.steps)
                ]
            ),
        )

    @cached_property
    def behavior_logprobs(self) -> Tensor | None:
        """[token], or None if any step has no behaviour logprobs (demonstrations)."""
        if any(step.behavior_logprobs.size == 0 for step in self.steps):
            return None
        joined = np.concatenate([step.behavior_logprobs for step in self.steps])
        return torch.from_numpy(joined.astype(np.float32)).to(self.device)

    @cached_property
    def keep(self) -> Tensor | None:
        """[step] bool: the steps that the policy learns from; None: all of them."""
        if not any(t.id in self.trained_steps for t in self.trajectories):
            return None
        chosen = [self.trained_steps.get(t.id, [True] * len(t.steps)) for t in self.trajectories]
        for trajectory, mask in zip(self.trajectories, chosen, strict=True):
            if len(mask) != len(trajectory.steps):
                raise InputError(
                    f"trained_steps: {trajectory.id} has {len(trajectory.steps)} steps, its mask {len(mask)}"
                )
        return torch.tensor([bool(flag) for mask in chosen for flag in mask], device=self.device)

    @cached_property
    def fresh(self) -> Tensor:
        """[step] bool: those of the update's own episodes, which are not replayed."""
        fresh = [t.id not in self.trained_steps for t in self.trajectories for _ in t.steps]
        return torch.tensor(fresh, device=self.device)

    @property
    def taught(self) -> Tensor | None:
        """[step] bool: the steps that the critic learns from; None: all of them."""
        return self.keep if self.replay_teaches_critic or bool(self.fresh.all()) else self.fresh

    def is_behind(self, version: int) -> Tensor:
        """Return [token] bool: sampled, at least in part, by weights older than `version`."""
        behind = [step.policy_version.first < version for step in self.steps]
        return torch.tensor(behind, device=self.device).repeat_interleave(self.timeline.tokens_per_step)

    def measure_gaps(self, logprobs: Tensor, version: int | None = None) -> LogprobGaps | None:
        """Measure the gaps between `logprobs` [token] and the engine's, in steps of `version` (None: any)."""
        engine = self.behavior_logprobs
        assert engine is not None
        fresh = torch.ones_like(engine, dtype=torch.bool) if version is None else ~self.is_behind(version)
        places = fresh.nonzero()[:, 0].cpu()
        if not len(places):
            return None
        ours, theirs = (side[fresh].float().cpu().numpy() for side in (logprobs, engine))
        return LogprobGaps.compare(theirs, ours, lambda i: self._describe_token(int(places[i])))

    def _describe_token(self, index: int) -> str:
        """Name a token by its trajectory, its step and its place in the step."""
        step, token = step_and_token(index, [step.num_units for step in self.steps])
        return f"{self.describe_step(step)}, token {token} of {self.steps[step].num_units}"

    def describe_step(self, index: int) -> str:
        """Name a step by its trajectory and its place in it."""
        trajectory, place = step_and_token(index, [len(t.steps) for t in self.trajectories])
        chosen = self.trajectories[trajectory]
        return f"trajectory {chosen.id}, step {place} of {len(chosen.steps)}"

    @cached_property
    def num_step_values(self) -> int:
        """Values that belong to steps; those after them are bootstraps."""
        return self.timeline.num_tokens + self.timeline.num_steps

    def bootstrap_values(self, values: Tensor) -> Tensor | None:
        """Return [trajectory]: the critic's value of the state after a truncation, otherwise 0."""
        if not self._final_states:
            return None
        result = torch.zeros(len(self.trajectories), dtype=values.dtype, device=values.device)
        places = self._to_tensor(list(self._final_states))
        return result.index_copy(0, places, values[self.num_step_values :])

    @cached_property
    def _final_states(self) -> dict[int, State]:
        if not self.with_bootstrap:
            return {}
        return {
            i: t.final_state
            for i, t in enumerate(self.trajectories)
            if t.status is Status.TRUNCATED and t.final_state is not None
        }

    @property
    def _is_robot(self) -> bool:
        return isinstance(self.steps[0].state, ArrayState)

    def _drop_action(self, state: State) -> Step:
        nothing = _NO_ACTIONS if self._is_robot else _NO_TOKENS
        return Step(state, nothing, behavior_logprobs=_NO_LOGPROBS)

    def _number_labels(self, names: Sequence[str]) -> Tensor:
        numbers: dict[str, int] = {}
        return self._to_tensor([numbers.setdefault(name, len(numbers)) for name in names])

    def _to_tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


@contextmanager
def oom_as_config_error(place: str, minibatches: Sequence[TrajectoryMinibatch]) -> Iterator[None]:
    """Turn running out of device memory into a `ConfigError` that names the setting to lower."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        packed = [one.packed for one in minibatches]
        most = max(-(-one.num_tokens // len(one.microbatches)) for one in packed)
        name, unit = ("token_budget", "tokens") if isinstance(packed[0], Packed) else ("micro_batch", "steps")
        raise ConfigError(
            f"{place}: the device's memory is too small for a microbatch of about {most} {unit}; set "
            f"train.{name} to {max(1, most // 2)} or less (gradients stay the same). {error}"
        ) from error


def _get_reward(step: Step) -> float:
    if step.reward is None:
        raise InputError("a step's reward is None (not assigned); assign rewards before an update")
    return step.reward


def list_images(minibatches: Sequence[TrajectoryMinibatch]) -> list[str]:
    """Names of all images that the trajectories show."""
    states = [
        state
        for minibatch in minibatches
        for trajectory in minibatch.trajectories
        for state in (*(step.state for step in trajectory.steps), trajectory.final_state)
    ]
    named = [span.image for state in states if isinstance(state, TokenState) for span in state.images]
    return list(dict.fromkeys(named))
