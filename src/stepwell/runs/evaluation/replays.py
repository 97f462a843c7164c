"""Episodes to look at: recorded trajectories played again in their world, with pictures.

The world is deterministic given task and seed, so that playing the recorded actions again shows
exactly the states the agent was in. The picture is the one that the agent saw, where it saw one.
Values are the critic's, advantages those of step GAE on the recorded rewards, whatever the recipe
trained with: what each turn was worth; an outside model has none. An agent of the user's own acts in a
world that is not known here: its episodes are shown by their messages alone. A robot's are shown by the
state in words, and by pictures where the machine can draw them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from stepwell.algos import credit
from stepwell.core import (
    ArrayAction,
    Observation,
    StateForm,
    Step,
    StepwellError,
    TextAction,
    Trajectory,
)
from stepwell.core.arrays import AnyArray
from stepwell.envs.base import Env
from stepwell.envs.registry import make_env
from stepwell.monitors.replays import FILE_NAME, Frame, Replay, load_replays, png_bytes, save_replays
from stepwell.runs.build.components import Parts
from stepwell.training import Minibatch

NUM_REPLAYS = 6
Stage = Literal["before", "after"]


def keep_replays(parts: Parts, folder: Path, trajectories: Sequence[Trajectory], stage: Stage) -> None:
    """Put a few episodes into a run's `replays.json` in place of those of the same stage."""
    path = folder / FILE_NAME
    others = [replay for replay in load_replays(path) if replay.stage != stage]
    save_replays(path, [*others, *make_replays(parts, trajectories[:NUM_REPLAYS], stage)])


def make_replays(parts: Parts, trajectories: Sequence[Trajectory], stage: Stage) -> list[Replay]:
    """One replay per trajectory that has steps."""
    kept = [trajectory for trajectory in trajectories if trajectory.steps]
    if not kept:
        return []
    values, advantages = _nothing(kept) if is_outside(kept[0]) else _worth(parts, kept)
    seen = [_Seen(one, stage, values[i], advantages[i]) for i, one in enumerate(kept)]
    if parts.config.own_agent.function is not None:
        return [_talk(one) for one in seen]
    env = make_env(parts.config.env.name, parts.config.env.options)
    play = _robot_replay if parts.is_robot else _replay
    try:
        return [play(env, one) for one in seen]
    finally:
        env.close()


def _worth(
    parts: Parts, trajectories: Sequence[Trajectory]
) -> tuple[list[list[float | None]], list[list[float | None]]]:
    """Per trajectory and step, the critic's value and the advantage; None without a critic."""
    if parts.policy.critic is None:
        return _nothing(trajectories)
    batch = Minibatch(trajectories, parts.policy.device)
    with torch.no_grad():
        read = parts.policy.values(batch.packed)
    states = torch.stack([row[0] for row in read]).float()
    if parts.recipe.value is not None and parts.recipe.value.loss == "value_bce":
        states = states.sigmoid()
    result = credit.step_gae(replace(batch.timeline, state_values=states))
    assert result.step_advantages is not None
    return _fold(states, trajectories), _fold(result.step_advantages, trajectories)


def _nothing(
    trajectories: Sequence[Trajectory],
) -> tuple[list[list[float | None]], list[list[float | None]]]:
    nothing: list[list[float | None]] = [[None] * len(t.steps) for t in trajectories]
    return nothing, nothing


def is_outside(trajectory: Trajectory) -> bool:
    """Whether an outside model played it: its words are known, its tokens are not."""
    return isinstance(trajectory.steps[0].action, TextAction)


def _said(step: Step) -> str:
    assert not isinstance(step.action, ArrayAction)
    return step.action.text


def _fold(flat: torch.Tensor, trajectories: Sequence[Trajectory]) -> list[list[float | None]]:
    numbers = iter(flat.tolist())
    return [[next(numbers) for _ in t.steps] for t in trajectories]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A trajectory to show, with what its steps were worth."""

    trajectory: Trajectory
    stage: Stage
    values: Sequence[float | None]
    advantages: Sequence[float | None]

    @property
    def seed(self) -> int:
        return int(self.trajectory.info["seed"]) % 2**32  # type: ignore[arg-type]

    def frame(self, index: int, observation: str, reply: str, actions: list[str], **more: Any) -> Frame:
        """A step with its figures."""
        step = self.trajectory.steps[index]
        return Frame(
            observation,
            reply,
            actions,
            reward=step.reward or 0.0,
            reward_parts=dict(step.reward_parts),
            value=self.values[index],
            advantage=self.advantages[index],
            **more,
        )

    def replay(self, frames: list[Frame], final_observation: str, **more: Any) -> Replay:
        """The whole, with what it ended with."""
        task = self.trajectory.task
        return Replay(
            task_id=task.id,
            title=f"{more.pop('title', task.env)} {task.id[:8]}",
            status=self.trajectory.status.value,
            total_reward=self.trajectory.total_reward,
            frames=frames,
            stage=self.stage,
            final_observation=final_observation,
            **more,
        )


def _talk(seen: _Seen) -> Replay:
    """An episode as what was said to the model and what it answered."""
    frames = []
    for index, step in enumerate(seen.trajectory.steps):
        messages: Any = step.info.get("messages", ())
        said = "\n\n".join(str(message.get("content", "")) for message in messages)
        frames.append(seen.frame(index, said, _said(step), []))
    return seen.replay(frames, seen.trajectory.error)


def _replay(env: Env, seen: _Seen) -> Replay:
    observation, _ = env.reset(seed=seen.seed, options={"task": seen.trajectory.task})
    frames = []
    for index, step in enumerate(seen.trajectory.steps):
        actions = [str(action) for action in step.info["actions"]]  # type: ignore[union-attr]
        picture, problem = png_bytes(_looked_at(env, observation)), str(step.info.get("problem", ""))
        frames.append(
            seen.frame(index, observation.text, _said(step), actions, image_png=picture, problem=problem)
        )
        observation = env.step(actions)[0]
    return seen.replay(frames, observation.text, final_image_png=png_bytes(_looked_at(env, observation)))


def _looked_at(env: Env, observation: Observation) -> AnyArray:
    """What the agent saw; a picture of the state for people where it read."""
    seen = observation.images
    return np.concatenate(seen, axis=1) if _side_by_side(seen) else env.render()


def _side_by_side(pictures: Sequence[AnyArray]) -> bool:
    return bool(pictures) and len({picture.shape[0] for picture in pictures}) == 1


def _robot_replay(env: Any, seen: _Seen) -> Replay:
    task = seen.trajectory.task
    env.reset(seed=seen.seed, options={"task": task})
    frames = []
    for index, step in enumerate(seen.trajectory.steps):
        assert isinstance(step.action, ArrayAction)
        actions = [" ".join(f"{number:+.2f}" for number in action) for action in step.action.chunk]
        words = env.state()[StateForm.NATURAL_LANGUAGE]
        frames.append(seen.frame(index, words, "", actions, image_png=_picture(env)))
        env.step(step.action.chunk)
    words = env.state()[StateForm.NATURAL_LANGUAGE]
    return seen.replay(frames, words, final_image_png=_picture(env), title=task.instruction or task.env)


def _picture(env: Any) -> bytes | None:
    """The present state as PNG; None on a machine that cannot draw it."""
    try:
        return png_bytes(env.render())
    except StepwellError:
        return None
