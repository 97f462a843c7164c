"""The Fetch arm: tasks drawn as Gymnasium-Robotics draws them, experts, one episode beside its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepwell.core import EnvError, InputError, Task
from stepwell.envs import make_env
from stepwell.envs.check import check_env
from stepwell.envs.robots.fetch.env import TASKS, FetchOptions

pytest.importorskip("gymnasium_robotics")


@pytest.mark.parametrize("name", TASKS)
def test_ranges_are_those_of_the_simulator(name: str) -> None:
    env = make_env("fetch", {"task": name})
    env.reset(seed=0)
    draw, theirs = TASKS[name], env._sim
    assert (draw.object_range is not None) == theirs.has_object
    assert draw.goal_range == theirs.target_range
    if theirs.has_object:
        assert draw.object_range == theirs.obj_range
        assert draw.is_in_the_air == bool(theirs.target_in_the_air)
    assert np.allclose(np.broadcast_to(theirs.target_offset, 3)[:2], draw.goal_offset)
    assert theirs.distance_threshold == 0.05


@pytest.mark.parametrize("name", ["push", "reach"])
def test_an_episode_is_that_of_the_package_itself(name: str) -> None:
    env = make_env("fetch", {"task": name, "reward": "dense"})
    env.reset(seed=3)
    theirs: Any = type(env._sim).__mro__[2](reward_type="dense")
    theirs.reset(seed=1)
    start, goal = theirs.initial_gripper_xpos, theirs.goal
    content: dict[str, Any] = {"task": name, "goal": list(goal - start)}
    if theirs.has_object:
        joint = theirs.model.joint("object0:joint").qposadr[0]
        content["object"] = list(theirs.data.qpos[joint : joint + 2] - start[:2])
        content["goal"][2] = goal[2] - theirs.height_offset
    env.reset(options={"task": Task("fetch", content)})
    for action in np.random.default_rng(0).uniform(-1, 1, (15, 4)).astype(np.float32):
        shown, reward, *_ = env.step(action[None])
        seen, their_reward, *_ = theirs.step(action)
        np.testing.assert_allclose(shown.arrays["state"][-3:], seen["desired_goal"], atol=1e-6)
        np.testing.assert_allclose(shown.arrays["proprio"][:3], seen["observation"][:3], atol=1e-5)
        assert reward == pytest.approx(float(their_reward), abs=1e-5)


@pytest.mark.parametrize("name", ["reach", "push", "pick_and_place"])
def test_the_expert_solves_its_tasks_and_random_play_nearly_none(name: str) -> None:
    env = make_env("fetch", {"task": name})
    rng = np.random.default_rng(0)
    by_chance = 0
    for seed in range(4):
        env.reset(seed=seed)
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(env.oracle()[None])
        assert info["success"]
    for seed in range(4):
        env.reset(seed=seed)
        by_chance += env.step(rng.uniform(-1, 1, (50, 4)))[4]["success"]
    assert by_chance <= (1 if name == "reach" else 0)


def test_sliding_has_no_expert_and_says_so() -> None:
    env = make_env("fetch", {"task": "slide"})
    env.reset(seed=0)
    assert not env.has_oracle
    with pytest.raises(EnvError, match="no scripted expert"):
        env.oracle()


def test_tasks_never_start_at_their_goal() -> None:
    for name, draw in TASKS.items():
        for seed in range(50):
            task = make_env("fetch", {"task": name}).make_task(FetchOptions(task=name), seed)
            thing = np.append(task.content["object"], 0.0) if draw.object_range else np.zeros(3)
            assert np.linalg.norm(np.array(task.content["goal"]) - thing) >= 0.1


def test_a_task_of_another_name_is_refused() -> None:
    env = make_env("fetch", {"task": "push"})
    with pytest.raises(InputError, match="is 'reach', not 'push'"):
        env.reset(options={"task": make_env("fetch").make_task(FetchOptions(), 0)})


def test_the_image_shows_the_goal() -> None:
    env = make_env("fetch", {"observation": "camera", "image_size": 96})
    image = env.reset(seed=4)[0].arrays["external_camera_0"].astype(int)
    red = (image[..., 0] > 120) & (image[..., 1] < 60) & (image[..., 2] < 60)
    assert 5 < red.sum() < 500


@pytest.mark.slow
def test_the_env_passes_the_check() -> None:
    report = check_env("fetch", {"task": "push"}, num_tasks=2)
    assert report.ok, str(report)
