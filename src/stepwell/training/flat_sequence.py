"""A trajectory as one flat sequence: the failing baseline that also trains on observations.

Everything after the first prompt becomes one action: the sampled tokens with the engine's
logprobs, and between them the observations with the policy's own, since no engine sampled them.
Images stay images: their placeholders are trained as tokens, and their features are the input.
Only for append-only dialogues; a rewritten context has no flat form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.core import InputError, Step, TokenAction, TokenState, Trajectory
from stepwell.core.arrays import FloatArray
from stepwell.packing import FlatAction
from stepwell.training.policy import Policy

SCORED_TOGETHER = 16
"""Trajectories scored in one pass: each of their tokens needs a row of logits."""


def flatten_trajectories(trajectories: Sequence[Trajectory], policy: Policy) -> list[Trajectory]:
    """Return the same trajectories with one step each, whose action contains observations and actions."""
    flat = []
    for start in range(0, len(trajectories), SCORED_TOGETHER):
        part = trajectories[start : start + SCORED_TOGETHER]
        bare = [_build_step(trajectory) for trajectory in part]
        flat += [_build_trajectory(*item) for item in zip(part, bare, policy.score(bare), strict=True)]
    return flat


def _build_step(trajectory: Trajectory) -> Step:
    """Build the one step, without the logprobs of its tokens."""
    first, last = trajectory.steps[0], trajectory.steps[-1]
    if not isinstance(first.state, TokenState) or not isinstance(last.state, TokenState):
        raise InputError("a robot's trajectory has no flat sequence; use a recipe without flat_sequence")
    assert isinstance(last.action, TokenAction)
    start = first.state.prompt_ids.size
    whole = np.concatenate([last.state.prompt_ids, last.action.action_ids])
    for step in trajectory.steps:
        assert isinstance(step.state, TokenState)
        if not np.array_equal(whole[: step.state.prompt_ids.size], step.state.prompt_ids):
            raise InputError(
                f"trajectory {trajectory.id}: its context was rewritten, so it has no flat sequence; "
                "use a recipe without flat_sequence"
            )
    action = FlatAction(
        whole[start:],
        "".join(step.action.text for step in trajectory.steps),  # type: ignore[union-attr]
        last.state.images[len(first.state.images) :],
    )
    return Step(first.state, action, behavior_logprobs=np.zeros(0, np.float32), sampling=first.sampling)


def _build_trajectory(trajectory: Trajectory, bare: Step, scored: FloatArray) -> Trajectory:
    """Build the trajectory of that step: engine's logprobs for sampled tokens, `scored` for the others."""
    first, logprobs = trajectory.steps[0], scored.copy()
    assert isinstance(first.state, TokenState)
    for step in trajectory.steps:
        assert isinstance(step.state, TokenState)
        place = step.state.prompt_ids.size - first.state.prompt_ids.size
        logprobs[place : place + step.num_units] = step.behavior_logprobs
    flat = Step(bare.state, bare.action, behavior_logprobs=logprobs, sampling=first.sampling)
    flat.policy_version, flat.anchor = first.policy_version, first.anchor
    flat.assign_reward({"task": trajectory.total_reward})
    return Trajectory(
        task=trajectory.task,
        steps=[flat],
        status=trajectory.status,
        group=trajectory.group,
        error=trajectory.error,
        id=trajectory.id,
        outcome=trajectory.outcome,
    )
