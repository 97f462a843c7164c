"""Replays: recorded trajectories played again in their environment, with images.

An environment is deterministic given task and seed, so the recorded actions lead through the same states.
The image is the one that the agent saw, if it saw one. Values are the critic's; advantages are those of step
GAE on the recorded rewards, whatever the recipe. An outside model has neither. The environment of a user's
own agent is not known here: its episodes are shown by their messages. A robot's are shown by the state in
words, and by images if the machine can render them.

An episode whose environment fails now, though it did not when it was recorded, is left out, and a note says
so: what was learnt does not depend on images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from stepwell.algos import credit
from stepwell.core import (
    ArrayAction,
    Observation,
    Outcome,
    StateForm,
    Step,
    StepwellError,
    TextAction,
    Trajectory,
)
from stepwell.core.arrays import AnyArray
from stepwell.core.text import describe_error
from stepwell.envs.base import Env
from stepwell.envs.registry import make_env
from stepwell.monitors.replays import FILE_NAME, Replay, ReplayFrame, encode_png, load_replays, save_replays
from stepwell.monitors.report import time_films
from stepwell.runs.build.components import Components
from stepwell.training import TrajectoryMinibatch

NUM_REPLAYS = 6
WINDOW = 640  # an image at least as wide is of a window, which what it shows may not fill
CROPPED_BELOW = 0.25  # share of such an image that holds something
SHOWN_PIXELS = 160  # sides of a robot's image in a replay, where its policy sees none
Stage = Literal["before", "after"]


def save_run_replays(
    components: Components,
    folder: Path,
    trajectories: Sequence[Trajectory],
    stage: Stage,
    note: Callable[[str], None],
) -> list[Replay]:
    """Write a few episodes into a run's `replays.json`, replacing those of the same stage."""
    path = folder / FILE_NAME
    others = [replay for replay in load_replays(path) if replay.stage != stage]
    made = make_replays(components, trajectories[:NUM_REPLAYS], stage, note)
    save_replays(path, [*others, *made])
    return made


def save_first_replays(
    components: Components, folder: Path, played: Sequence[Trajectory], note: Callable[[str], None]
) -> float:
    """Save the replays before training; returns the seconds that those at the end and all films will take."""
    began = time.perf_counter()
    shown = save_run_replays(components, folder, played, "before", note)
    return time.perf_counter() - began + time_films(shown)


def make_replays(
    components: Components, trajectories: Sequence[Trajectory], stage: Stage, note: Callable[[str], None]
) -> list[Replay]:
    """One replay per trajectory that has steps and can be played again; `note` gets a line about others."""
    kept = [trajectory for trajectory in trajectories if trajectory.steps]
    if not kept:
        return []
    values, advantages = _make_empty(kept) if is_outside(kept[0]) else _compute_worth(components, kept)
    seen = [_ShownEpisode(one, stage, values[i], advantages[i]) for i, one in enumerate(kept)]
    if components.config.own_agent.function is not None:
        return [_replay_messages(one) for one in seen]
    play, name = _replay_robot if components.is_robot else _replay_language, components.config.env.name
    replays: list[Replay] = []
    problems: list[BaseException] = []
    try:
        with closing(make_env(name, _choose_options(components))) as env:
            for one in seen:
                try:
                    replays.append(play(env, one))
                except (Exception, SystemExit) as error:  # a user's environment may raise anything
                    problems.append(error)
    except (Exception, SystemExit) as error:
        problems.append(error)
    if problems:
        note(
            f"{len(seen) - len(replays)} of {len(seen)} episodes are not shown step by step: played again, "
            f"{name} raised {describe_error(problems[0])}"
        )
    return replays


def _compute_worth(
    components: Components, trajectories: Sequence[Trajectory]
) -> tuple[list[list[float | None]], list[list[float | None]]]:
    """Per trajectory and step, the critic's value and the advantage; None without a critic."""
    policy: Any = components.policy  # its batches fit its own states
    if policy.critic is None:
        return _make_empty(trajectories)
    batch = TrajectoryMinibatch(trajectories, policy.device)
    with torch.no_grad():
        read = policy.values(batch.packed)
    states = torch.stack([row[0] for row in read]).float()
    result = credit.step_gae(replace(batch.timeline, state_values=states))
    assert result.step_advantages is not None
    return _split_by_step(states, trajectories), _split_by_step(result.step_advantages, trajectories)


def _choose_options(components: Components) -> dict[str, Any]:
    """The environment's options; a robot whose policy sees no image is shown in larger ones than it would."""
    options = dict(components.config.env.options)
    if components.is_robot and options.get("observation", "state") == "state":
        options.setdefault("image_size", SHOWN_PIXELS)
    return options


def _make_empty(
    trajectories: Sequence[Trajectory],
) -> tuple[list[list[float | None]], list[list[float | None]]]:
    nothing: list[list[float | None]] = [[None] * len(t.steps) for t in trajectories]
    return nothing, nothing


def is_outside(trajectory: Trajectory) -> bool:
    """Whether an outside model played it: its text is known, its tokens are not."""
    return isinstance(trajectory.steps[0].action, TextAction)


def _read_reply(step: Step) -> str:
    assert not isinstance(step.action, ArrayAction)
    return step.action.text


def _split_by_step(flat: torch.Tensor, trajectories: Sequence[Trajectory]) -> list[list[float | None]]:
    numbers = iter(flat.tolist())
    return [[next(numbers) for _ in t.steps] for t in trajectories]


@dataclass(frozen=True, slots=True)
class _ShownEpisode:
    """A trajectory to show, with the values and advantages of its steps."""

    trajectory: Trajectory
    stage: Stage
    values: Sequence[float | None]
    advantages: Sequence[float | None]

    @property
    def seed(self) -> int:
        return int(self.trajectory.info["seed"]) % 2**32  # type: ignore[arg-type]

    def frame(self, index: int, observation: str, reply: str, actions: list[str], **more: Any) -> ReplayFrame:
        """A step with its figures."""
        step = self.trajectory.steps[index]
        return ReplayFrame(
            observation,
            reply,
            actions,
            reward=step.reward or 0.0,
            reward_parts=dict(step.reward_parts),
            value=self.values[index],
            advantage=self.advantages[index],
            **more,
        )

    def replay(self, frames: list[ReplayFrame], final_observation: str, **more: Any) -> Replay:
        """The whole episode, with its end."""
        task = self.trajectory.task
        return Replay(
            task_id=task.id,
            title=f"{more.pop('title', task.env)} {task.id[:8]}",
            status=self.trajectory.status.value,
            total_reward=self.trajectory.total_reward,
            frames=frames,
            stage=self.stage,
            final_observation=final_observation,
            judged=_describe_outcome(self.trajectory.outcome),
            **more,
        )


def _describe_outcome(outcome: Outcome | None) -> str:
    """Such as `success 0.93 (outcome_model)`; empty if nobody judged the episode."""
    if outcome is None:
        return ""
    verdict = "success" if outcome.is_success else "failure"
    return f"{verdict} {outcome.success_probability:.2f} ({outcome.source})"


def _replay_messages(seen: _ShownEpisode) -> Replay:
    """An episode as messages to the model and its replies."""
    frames = []
    for index, step in enumerate(seen.trajectory.steps):
        messages: Any = step.info.get("messages", ())
        frames.append(seen.frame(index, _format_messages(messages), _read_reply(step), []))
    return seen.replay(frames, seen.trajectory.error)


def _format_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """The texts of messages; of several, each with its role."""
    texts = [str(message.get("text", message.get("content", ""))) for message in messages]
    if len(texts) < 2:
        return "".join(texts)
    return "\n\n".join(f"{m.get('role', '')}: {text}" for m, text in zip(messages, texts, strict=True))


def _replay_language(env: Env, seen: _ShownEpisode) -> Replay:
    observation, _ = env.reset(seed=seen.seed, options={"task": seen.trajectory.task})
    frames, images = [], [_choose_image(env, observation)]
    for index, step in enumerate(seen.trajectory.steps):
        actions = [str(action) for action in step.info["actions"]]  # type: ignore[union-attr]
        problem = str(step.info.get("problem", ""))
        frames.append(seen.frame(index, observation.text, _read_reply(step), actions, problem=problem))
        if not step.is_summary:
            observation = env.step(actions)[0]
        images.append(_choose_image(env, observation))
    *pngs, last = [None if image is None else encode_png(image) for image in _crop_margins(images)]
    frames = [replace(frame, image_png=png) for frame, png in zip(frames, pngs, strict=True)]
    return seen.replay(frames, observation.text, final_image_png=last)


def _choose_image(env: Env, observation: Observation) -> AnyArray | None:
    """The image that the agent saw; for a text agent one of the state, if there is any."""
    seen = observation.images
    if _has_equal_heights(seen):
        return np.concatenate(seen, axis=1)
    return None if type(env).render is Env.render else env.render()


def _crop_margins(images: Sequence[AnyArray | None]) -> list[AnyArray | None]:
    """An episode's images without what is of one colour to the right and below in all of them.

    Only where that is most of them: a page of 160 pixels in a browser's window of 1280.
    """
    shown = [image for image in images if image is not None]
    if len({image.shape for image in shown}) != 1 or shown[0].shape[1] < WINDOW:
        return list(images)
    differs = np.any([(image != image[-1, -1]).any(axis=2) for image in shown], axis=0)
    if not differs.any():
        return list(images)
    height, width = (int(np.flatnonzero(differs.any(axis=axis))[-1]) + 1 for axis in (1, 0))
    if height * width > CROPPED_BELOW * differs.size:
        return list(images)
    return [None if image is None else image[:height, :width] for image in images]


def _has_equal_heights(images: Sequence[AnyArray]) -> bool:
    return bool(images) and len({image.shape[0] for image in images}) == 1


def _replay_robot(env: Any, seen: _ShownEpisode) -> Replay:
    task = seen.trajectory.task
    env.reset(seed=seen.seed, options={"task": task})
    frames = []
    for index, step in enumerate(seen.trajectory.steps):
        assert isinstance(step.action, ArrayAction)
        actions = [" ".join(f"{number:+.2f}" for number in action) for action in step.action.chunk]
        words = env.state()[StateForm.NATURAL_LANGUAGE]
        frames.append(seen.frame(index, words, "", actions, image_png=_render_png(env)))
        env.step(step.action.chunk)
    words = env.state()[StateForm.NATURAL_LANGUAGE]
    return seen.replay(frames, words, final_image_png=_render_png(env), title=task.instruction or task.env)


def _render_png(env: Any) -> bytes | None:
    """The present state as PNG; None on a machine that cannot render it."""
    try:
        return encode_png(env.render())
    except StepwellError:
        return None
