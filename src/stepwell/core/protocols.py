"""Protocols of injected models: they sample actions, score steps, or estimate values.

Code that needs a model (rewards, curriculum, rollout) asks for one of these and never
imports an engine or a policy. All three work on steps and states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol, runtime_checkable

from stepwell.core.arrays import FloatArray
from stepwell.core.errors import InputError
from stepwell.core.ids import make_id
from stepwell.core.step import Action, Sampling, State, Step
from stepwell.core.versions import VersionSpan


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample an action.

    With `seed=None` the engine draws a seed; the step records it either way.
    An action ends at the token that completes one of the `stop` strings.
    """

    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_end: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise InputError(f"max_tokens must be at least 1, got {self.max_tokens}")
        Sampling(self.temperature, self.top_p)  # same limits, same messages
        if any(not text for text in self.stop):
            raise InputError("stop contains an empty string, which would end every action; remove it")

    def with_seed(self, seed: int | None) -> SamplingParams:
        """The same parameters with another seed. Called for every step, so nothing is checked again."""
        made = object.__new__(SamplingParams)
        for name in _PARAMS:
            object.__setattr__(made, name, getattr(self, name))
        object.__setattr__(made, "seed", seed)
        return made


_PARAMS = tuple(each.name for each in fields(SamplingParams) if each.name != "seed")


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one action: a state, how to sample, and the conversation it belongs to.

    `conversation` names the episode, so that an engine can find the cache of its earlier
    turns. An engine may ignore it; the distribution must be the same either way. `demonstration` is the
    reply that the caller would give, if it needs no oracle; demonstrators use it, engines do not.
    """

    state: State
    params: SamplingParams = field(default_factory=SamplingParams)
    conversation: str | None = None
    id: str = field(default_factory=lambda: make_id("req"))
    demonstration: str | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled action: what a `Step` needs from the engine.

    `logprobs` are those of the temperature-scaled, untruncated distribution.
    `num_cached` counts prompt tokens whose keys and values were reused. `position_mark` marks the positions
    at which the engine read prompt and action (`core/position_marks.py`); None if it does not say.
    """

    action: Action
    logprobs: FloatArray
    sampling: Sampling
    policy_version: VersionSpan
    num_cached: int = 0
    position_mark: int | None = None

    def step(self, state: State) -> Step:
        """The step with this action in `state`."""
        return Step(
            state=state,
            action=self.action,
            behavior_logprobs=self.logprobs,
            sampling=self.sampling,
            policy_version=self.policy_version,
            position_mark=self.position_mark,
        )


@runtime_checkable
class Sampler(Protocol):
    """Samples actions: an engine, a gateway client, an outside model."""

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order; the requests stay together and are never split."""


@runtime_checkable
class Scorer(Protocol):
    """Computes log-probabilities of actions already taken."""

    def score(self, steps: Sequence[Step]) -> list[FloatArray]:
        """One value per action unit of each step, in order."""


@runtime_checkable
class Critic(Protocol):
    """Estimates the value of states."""

    def state_values(self, states: Sequence[State]) -> FloatArray:
        """V(s) of each state, in order."""
