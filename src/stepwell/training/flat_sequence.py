"""A trajectory as one flat sequence: the failing baseline in which observations are trained too.

Everything after the first prompt becomes one action: the sampled tokens with the engine's
logprobs, and between them the observations with the policy's own, since nobody sampled those.
Only for dialogues that append; a rewritten context has no flat form.
"""

from __future__ import annotations

import numpy as np

from stepwell.core import InputError, Step, TokenAction, TokenState, Trajectory
from stepwell.training.policy import Policy


def flatten(trajectory: Trajectory, policy: Policy) -> Trajectory:
    """The same trajectory with one step, whose action holds observations and actions alike."""
    first, last = trajectory.steps[0], trajectory.steps[-1]
    if not isinstance(first.state, TokenState) or not isinstance(last.state, TokenState):
        raise InputError("a robot's trajectory has no flat sequence; use a recipe without flat_sequence")
    assert isinstance(last.action, TokenAction)
    start = first.state.prompt_ids.size
    whole = np.concatenate([last.state.prompt_ids, last.action.action_ids])
    action = TokenAction(whole[start:], "".join(step.action.text for step in trajectory.steps))  # type: ignore[union-attr]
    bare = Step(first.state, action, behavior_logprobs=np.zeros(0, np.float32), sampling=first.sampling)
    logprobs = policy.score([bare])[0].copy()
    for step in trajectory.steps:
        assert isinstance(step.state, TokenState) and isinstance(step.action, TokenAction)
        end = step.state.prompt_ids.size
        if not np.array_equal(whole[:end], step.state.prompt_ids):
            raise InputError(
                f"trajectory {trajectory.id}: its context was rewritten, so it has no flat sequence; "
                "use a recipe without flat_sequence"
            )
        logprobs[end - start : end - start + step.num_units] = step.behavior_logprobs
    flat = Step(first.state, action, behavior_logprobs=logprobs, sampling=first.sampling)
    flat.policy_version, flat.anchor = first.policy_version, first.anchor
    flat.assign_reward({"task": trajectory.total_reward})
    return Trajectory(
        task=trajectory.task,
        steps=[flat],
        status=trajectory.status,
        group=trajectory.group,
        error=trajectory.error,
        id=trajectory.id,
    )
