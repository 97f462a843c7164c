"""A robot's episode is shown again from its actions: each of them, the same states, in its own process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.policies.vla.point_env import NAME, PointEnv, PointOptions

from stepwell.core import ArrayAction, EnvError, Split, Status, Step, Trajectory
from stepwell.core.errors import InputError
from stepwell.envs import draw_tasks
from stepwell.runs.evaluation import robot_frames
from stepwell.runs.evaluation.robot_frames import render_apart, render_episode


def play_episode(num_turns: int = 3) -> tuple[Trajectory, list[Any]]:
    """An episode of random chunks, and the image after each of its actions."""
    env, rng = PointEnv(PointOptions(image_size=240)), np.random.default_rng(1)
    (task,) = draw_tasks(NAME, {}, Split.TRAIN, 1, seed=0)
    state, _ = env.reset(seed=5, options={"task": task})
    steps, images = [], [env.render()]
    for _ in range(num_turns):
        chunk = rng.uniform(-0.3, 0.3, (2, 2)).astype(np.float32)
        steps.append(Step(state, ArrayAction(chunk, 4), np.zeros(4, np.float32)))
        for action in chunk:
            state = env.step(action[None])[0]
            images.append(env.render())
    return Trajectory(task, steps, Status.FAILURE, info={"seed": 5}), images


def test_every_action_is_shown_as_it_happened() -> None:
    trajectory, images = play_episode()
    frames = render_episode(NAME, {}, trajectory)
    assert len(frames) == 7 and frames[0].shape == (240, 240, 3)
    assert all(np.array_equal(frame, image) for frame, image in zip(frames, images, strict=True))
    assert any(not np.array_equal(frames[0], frame) for frame in frames)


def test_a_long_episode_is_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robot_frames, "MAX_FRAMES", 4)
    trajectory, images = play_episode()
    frames = render_episode(NAME, {}, trajectory)
    assert [np.array_equal(frames[i], images[j]) for i, j in enumerate((0, 2, 4, 6))] == [True] * 4


def test_a_process_of_its_own_shows_it_or_says_why_not() -> None:
    trajectory, images = play_episode()
    frames = render_apart(NAME, {}, trajectory)
    assert np.array_equal(np.stack(frames), np.stack(images))
    with pytest.raises(EnvError, match=r"exit code 1.*\n.*radius"):
        render_apart(NAME, {"radius": -1.0}, trajectory)


def test_options_that_name_files_or_code_are_refused() -> None:
    with pytest.raises(InputError, match=r"env\.options\.\w+ names a file or code"):
        robot_frames.refuse_host_options("shop", {"webshop_files": "/etc"})
