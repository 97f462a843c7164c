"""ManiSkill itself: its tasks by our adapter, and PrimitiveSkill's table with a Panda that must hold things.

Skipped where ManiSkill is not installed; `make test-extra-maniskill` has an environment for it. Without a
graphics device images are left out (`blind_sapien.py`), the physics is real.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.envs.robots.blind_sapien import leave_out_visuals

from stepwell.core import ConfigError
from stepwell.envs import make_env
from stepwell.envs.robots.maniskill_env import INSTRUCTIONS

pytest.importorskip("mani_skill")
leave_out_visuals()


def opened(task: str, **options: Any) -> Any:
    return make_env("maniskill", {"task": task, "observation": "state", **options})


@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_every_task_that_has_an_instruction_opens_and_moves(task: str) -> None:
    env = opened(task)
    seen, _ = env.reset(seed=3)
    rng = np.random.default_rng(0)
    after, reward, *_, info = env.step(rng.uniform(-1, 1, (5, env.description.action_dim)).astype(np.float32))
    assert {name: array.shape for name, array in seen.arrays.items()} == {
        name: spec.shape for name, spec in env.description.arrays.items()
    }
    assert not np.array_equal(seen.arrays["proprio"], after.arrays["proprio"])
    assert reward == 0.0 and info["num_actions"] == 5
    env.close()


def test_a_seed_is_a_task() -> None:
    env = opened("PickCube-v1")
    first, again, other = (env.reset(seed=seed)[0].arrays["state"] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    env.close()


def test_success_is_the_simulators() -> None:
    """The gripper goes behind the cube, down, and on to the goal."""
    env = opened("PushCube-v1", max_actions=200)
    env.reset(seed=0)
    is_over, way = False, ("behind", "down", "on")
    for stage in way:
        for _ in range(25):
            facts = env.facts()
            hand, cube, goal = (np.array(facts[n]) for n in ("tcp_pose", "obj_pose", "goal_pos"))
            target = np.array([cube[0] - 0.12, cube[1], 0.15 if stage == "behind" else 0.02])
            if stage == "on":
                target[0] = goal[0] + 0.1
            move = np.zeros((1, 7), np.float32)
            move[0, :3] = np.clip((target - hand[:3]) / 0.1, -0.5, 0.5)
            move[0, 6] = -1.0
            *_, is_over, _, info = env.step(move)
            if is_over:
                break
            if np.linalg.norm(target - hand[:3]) < 0.01:
                break
    assert is_over and info["success"]
    env.close()


def test_what_maniskill_refuses_is_said_with_its_reason() -> None:
    with pytest.raises(ConfigError, match=r"ManiSkill refuses env\.options of 'PlugCharger-v1'.*reward mode"):
        opened("PlugCharger-v1", reward="dense").reset(seed=0)
    with pytest.raises(ConfigError, match=r"ManiSkill refuses env\.options of 'NoSuchTask-v1'"):
        opened("NoSuchTask-v1").reset(seed=0)


@pytest.mark.parametrize("task", ["place", "stack", "align"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_oracle_of_primitive_skill_solves_its_tasks_with_a_panda(task: str, seed: int) -> None:
    env = make_env("primitive_skill", {"simulator": "maniskill", "task": task, "observation": "text"})
    env.reset(seed=seed)
    total, is_over = 0.0, False
    while not is_over:
        _, reward, is_over, is_cut, info = env.step(env.oracle()[:1])
        total += reward
        assert not is_cut
    assert info["success"] and total == pytest.approx(11.7)  # a subgoal on the way, and the task
    env.close()


def test_a_pick_beside_every_cube_has_no_effect() -> None:
    env = make_env("primitive_skill", {"simulator": "maniskill", "task": "align", "observation": "text"})
    env.reset(seed=0)
    seen, reward, *_ = env.step(["pick(150, 150, 20)"])
    assert reward == pytest.approx(-0.1) and "Without effect: pick(150,150,20)" in seen.text
    env.close()
