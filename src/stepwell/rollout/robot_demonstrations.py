"""Demonstrations of scripted experts, as steps that both policy heads can imitate.

`ExpertSampler` takes the place of an engine and gives one action at a time, since an expert observes before
every action. With `noise`, normal noise of that standard deviation is added per dimension, within [-1, 1].
The record has the actions that were executed. The expert continues from there, so demonstrations show
recovery.

A policy decides C actions at a time. `regroup_into_chunks` turns one demonstration into C trajectories, one
for each place where the first chunk can begin, so that every observed state is once the state of a step.
Each is what an agent would have experienced that began there. Actions are given, not sampled: a step has a
chunk but no draws and no behaviour logprobs.
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
from stepwell.rollout.jobs import Job, require_demonstrations

_NO_LOGPROBS = np.zeros(0, dtype=np.float32)


class ExpertSampler:
    """Answers each request with the next action of its environment's scripted expert."""

    def __init__(self, envs: Sequence[Any], *, noise: float = 0.0) -> None:
        if not envs[0].has_oracle:
            raise ConfigError(
                f"warm_start.num_demos: {envs[0].name} has no scripted expert to demonstrate; set it to 0"
            )
        self._envs, self._noise = envs, noise

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        """One action per request; the request's seed draws the noise."""
        return [self._answer_request(request) for request in requests]

    def _answer_request(self, request: Request) -> Sampled:
        assert request.conversation is not None and request.params.seed is not None
        expert = np.asarray(self._envs[int(request.conversation)].oracle(), np.float32)
        noise = np.random.default_rng(request.params.seed).normal(size=expert.size) if self._noise else 0.0
        chunk = np.clip(expert + self._noise * noise, -1.0, 1.0).astype(np.float32)[None]
        sampling = Sampling(seed=request.params.seed, finish_reason=FinishReason.GIVEN)
        return Sampled(ArrayAction(chunk, chunk.size), _NO_LOGPROBS, sampling, VersionSpan.at(0))


def demonstrate_robot(rollout: Rollout, tasks: Sequence[Task], seed: int, chunk: int) -> list[Trajectory]:
    """The expert's episodes on these tasks, regrouped into chunks: up to `chunk` trajectories per task."""
    assert isinstance(rollout.sampler, ExpertSampler)
    seeds = np.random.default_rng([seed, len(tasks)]).integers(2**62, size=len(tasks))
    jobs = [Job(task, task.id, int(seed)) for task, seed in zip(tasks, seeds, strict=True)]
    shown = require_demonstrations(rollout.run(jobs, SamplingParams()), rollout.envs.name)
    return [part for trajectory in shown for part in regroup_into_chunks(trajectory, chunk)]


def regroup_into_chunks(trajectory: Trajectory, chunk: int) -> list[Trajectory]:
    """A demonstration in steps of one action, as demonstrations in steps of up to `chunk` actions."""
    return [
        Trajectory(
            task=trajectory.task,
            steps=[
                _join_steps(trajectory.steps[start : start + chunk])
                for start in range(begin, len(trajectory.steps), chunk)
            ],
            status=trajectory.status,
            group=trajectory.group,
            final_state=trajectory.final_state,
            info=dict(trajectory.info),
        )
        for begin in range(min(chunk, len(trajectory.steps)))
    ]


def _join_steps(steps: Sequence[Step]) -> Step:
    """Consecutive steps as one: the first state, all actions, the sum of rewards."""
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
