"""LIBERO as it is; run by scripts/test_extra_libero.sh, skipped where it is not installed."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.core import ConfigError, EnvError, InputError, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.check import check_env
from stepwell.envs.robots.libero_env import open_scene

pytest.importorskip("libero")


def test_the_env_keeps_the_contract() -> None:
    options = {"max_actions": 12, "num_settling": 2, "observation": "both"}
    report = check_env("libero", options, num_tasks=2)
    assert report.ok, str(report)


def test_tasks_are_the_initial_states_of_the_package() -> None:
    scene = open_scene("libero_spatial", 0)
    assert scene.states.shape[0] == 50
    assert scene.instruction.startswith("pick up the black bowl")
    tasks = draw_tasks("libero", {}, "train", 20, seed=0)
    assert len({task.content["initial_state"] for task in tasks}) == 20
    assert {task.instruction for task in tasks} == {scene.instruction}


def test_a_task_is_named_or_numbered() -> None:
    scene = open_scene("libero_goal", 3)
    assert open_scene("libero_goal", scene.name).path == scene.path
    with pytest.raises(ConfigError, match="has tasks 0 to 9, got 10"):
        open_scene("libero_goal", 10)
    with pytest.raises(ConfigError, match="has no 'dance'"):
        open_scene("libero_goal", "dance")
    with pytest.raises(ConfigError, match="near: libero_goal"):
        open_scene("libero_gaol", 0)


def test_objects_stand_where_the_initial_state_has_them_and_there_is_no_expert() -> None:
    env = make_env("libero", {"num_settling": 0})
    task = env.make_task(env.options, 0)
    env.reset(options={"task": task})
    state = open_scene("libero_spatial", 0).states[task.content["initial_state"]]
    np.testing.assert_allclose(
        env._sim.env.sim.data.qpos, state[1 : 1 + env._sim.env.sim.model.nq], atol=1e-9
    )
    with pytest.raises(EnvError, match="no scripted expert"):
        env.oracle()
    with pytest.raises(InputError, match="must be below 50"):
        env.reset(options={"task": Task("libero", {**task.content, "initial_state": 50})})
    env.close()


def test_there_is_no_dense_reward() -> None:
    with pytest.raises(ConfigError, match="no dense reward"):
        make_env("libero", {"reward": "dense"})
