"""Trajectories made by hand and by a real engine, for tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from tests.runs.small import small_components

from stepwell.core import SamplingParams, Split, Status, Step, Task, TokenAction, TokenState, Trajectory
from stepwell.rollout import Job
from stepwell.runs.build.components import Components


def made(
    rewards: Sequence[float],
    *,
    group: str = "",
    lengths: Sequence[int] | None = None,
    status: Status = Status.FAILURE,
    final: Sequence[int] | None = None,
    anchors: Sequence[str | None] | None = None,
    prompt: Sequence[int] = (1, 2, 3),
) -> Trajectory:
    """A dialogue whose prompt grows by each action, with logprobs of -1."""
    steps, prompt = [], list(prompt)
    for i, reward in enumerate(rewards):
        action = list(range(10, 10 + (2 if lengths is None else lengths[i])))
        step = Step(
            TokenState(np.array(prompt, np.int32)),
            TokenAction(np.array(action, np.int32)),
            behavior_logprobs=np.full(len(action), -1.0, np.float32),
        )
        step.assign_reward({"task": reward})
        step.anchor = None if anchors is None else anchors[i]
        steps.append(step)
        prompt = [*prompt, *action, 4]
    state = None if final is None else TokenState(np.array(final, np.int32))
    return Trajectory(Task("lake", {"board": group}), steps, status, group, state)


@cache
def sampled(num_tasks: int = 3, group_size: int = 2) -> tuple[Components, list[Trajectory]]:
    """Components with a critic, and episodes its engine has just sampled (rewards set apart)."""
    components = small_components("recipe.name=steppo", "policy.critic=shared")
    tasks = components.tasks(Split.TRAIN, num_tasks, 0)
    jobs = [Job(t, t.id, 10 * i + k) for i, t in enumerate(tasks) for k in range(group_size)]
    trajectories = components.runner.rollout.run(jobs, components.sampling_params(1.0)).trajectories
    for number, step in enumerate(step for t in trajectories for step in t.steps):
        step.assign_reward({"task": 0.1 * ((number * 7) % 5) - 0.1})  # no two siblings alike
    return components, trajectories


PARAMS = SamplingParams(max_tokens=10)
