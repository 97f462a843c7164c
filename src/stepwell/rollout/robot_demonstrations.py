"""Demonstrations of scripted experts, as steps that either head can imitate.

`ExpertSampler` stands where an engine stands and answers one action at a time, since an expert looks
before every action. With `noise`, each action is the expert's plus a normal number of that
standard deviation per dimension, within [-1, 1]; what is recorded is what was done. The expert goes
on from where that led, so the demonstrations show how to come back.

A policy decides C actions at a time. `chunked` regroups a demonstration accordingly: one trajectory
for each of the C places where the first chunk can begin, so that every state that was seen is once
the state of a step. Each of them is what an agent would have experienced that began there. The
action of a step is given, not drawn: it has a chunk and no draws, no behaviour logprobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepwell.core import (
    ArrayAction,
    ConfigError,
    FinishReason,
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Step,
    Task,
    Trajectory,
)
from stepwell.core.versions import VersionSpan
from stepwell.rollout.episodes import Rollout
from stepwell.rollout.jobs import Job

_NO_LOGPROBS = np.zeros(0, dtype=np.float32)


class ExpertSampler:
    """Answers each request with the next action of its world's scripted expert."""

    def __init__(self, envs: Sequence[Any], *, noise: float = 0.0) -> None:
        if not envs[0].has_oracle:
            raise ConfigError(
                f"warm_start.num_demos: {envs[0].name} has no scripted expert to demonstrate; set it to 0"
            )
        self._envs, self._noise = envs, noise

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """One action per request; the request's seed draws the noise."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Sampled:
        assert request.conversation is not None and request.params.seed is not None
        action = np.asarray(self._envs[int(request.conversation)].oracle(), np.float32)
        if self._noise:
            action = action + self._noise * np.random.default_rng(request.params.seed).normal(
                size=action.size
            )
        chunk = np.clip(action, -1.0, 1.0).astype(np.float32)[None]
        sampling = Sampling(seed=request.params.seed, finish_reason=FinishReason.GIVEN)
        return Sampled(ArrayAction(chunk, chunk.size), _NO_LOGPROBS, sampling, VersionSpan.at(0))


def demonstrate_robot(rollout: Rollout, tasks: Sequence[Task], seed: int, chunk: int) -> list[Trajectory]:
    """The expert's episodes on these tasks, regrouped into chunks: up to `chunk` trajectories per task."""
    assert isinstance(rollout.sampler, ExpertSampler)
    seeds = np.random.default_rng([seed, len(tasks)]).integers(2**62, size=len(tasks))
    jobs = [Job(task, task.id, int(seed)) for task, seed in zip(tasks, seeds, strict=True)]
    shown = rollout.run(jobs, SamplingParams()).trajectories
    return [part for trajectory in shown for part in chunked(trajectory, chunk)]


def chunked(trajectory: Trajectory, chunk: int) -> list[Trajectory]:
    """A demonstration in steps of one action, as demonstrations in steps of up to `chunk` actions."""
    return [
        Trajectory(
            task=trajectory.task,
            steps=[
                _joined(trajectory.steps[start : start + chunk])
                for start in range(begin, len(trajectory.steps), chunk)
            ],
            status=trajectory.status,
            group=trajectory.group,
            final_state=trajectory.final_state,
            info=dict(trajectory.info),
        )
        for begin in range(min(chunk, len(trajectory.steps)))
    ]


def _joined(steps: Sequence[Step]) -> Step:
    """Consecutive steps as one: the first state, all actions, the rewards summed."""
    actions = np.concatenate([step.action.chunk for step in steps])  # type: ignore[union-attr]
    joined = Step(
        steps[0].state,
        ArrayAction(actions, actions.size),
        behavior_logprobs=_NO_LOGPROBS,
        sampling=steps[0].sampling,
    )
    joined.assign_reward(
        {name: sum(step.reward_parts[name] for step in steps) for name in steps[0].reward_parts}
    )
    return joined
