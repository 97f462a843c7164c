"""robosuite as it is; run by scripts/test_extra_robosuite.sh, skipped where it is not installed."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.core import ConfigError, EnvError, InputError
from stepwell.envs import make_env
from stepwell.envs.check import check_env

robosuite = pytest.importorskip("robosuite", minversion="1.5")


@pytest.fixture(scope="module")
def lift():
    env = make_env("robosuite")
    yield env
    env.close()


def test_every_environment_of_the_package_has_words() -> None:
    from stepwell.envs.robots.robosuite_env import INSTRUCTIONS

    assert set(INSTRUCTIONS) == set(robosuite.ALL_ENVIRONMENTS)


def test_the_expert_lifts_the_cube_and_random_play_does_not(lift) -> None:
    rng = np.random.default_rng(0)
    solved = by_chance = 0
    for seed in range(5):
        lift.reset(seed=seed)
        terminated = False
        while not terminated:
            _, reward, terminated, _, info = lift.step(lift.oracle()[None])
        solved += info["success"]
        assert reward == float(info["success"])
    for seed in range(3):
        lift.reset(seed=seed)
        by_chance += lift.step(rng.uniform(-1, 1, (100, 7)))[4]["success"]
    assert solved == 5 and by_chance == 0


def test_the_seed_of_the_task_places_the_cube(lift) -> None:
    places = [lift.reset(seed=seed)[0].arrays["state"][:2].tolist() for seed in (1, 2, 1)]
    assert places[0] == places[2] != places[1]
    assert all(abs(number) <= 0.031 for place in places for number in place)


def test_an_env_keeps_the_contract() -> None:
    report = check_env("robosuite", {"max_actions": 60, "observation": "both"}, num_tasks=2)
    assert report.ok, str(report)


def test_other_tasks_open_and_have_no_expert() -> None:
    env = make_env("robosuite", {"task": "Stack", "max_actions": 3})
    observation, _ = env.reset(seed=0)
    assert observation.instruction == "put the red cube on the green cube"
    with pytest.raises(EnvError, match="no scripted expert"):
        env.oracle()
    with pytest.raises(InputError, match="not 'Stack'"):
        env.reset(options={"task": make_env("robosuite").make_task(make_env("robosuite").options, 0)})
    env.close()
    two = make_env("robosuite", {"task": "TwoArmLift", "max_actions": 3})
    assert two.description.action_dim == 14 and two.description.arrays["proprio"].shape == (50,)
    two.close()


def test_an_unknown_task_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no 'Juggle'; it has Door, Lift"):
        make_env("robosuite", {"task": "Juggle"}).reset(seed=0)
