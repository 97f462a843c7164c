"""Gymnasium environments as environments: actions by name, observations as text, ends and success."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.core import ConfigError, InputError, Split
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.check import check_env
from stepwell.envs.gymnasium_env import make_gymnasium_type, write_observation

gymnasium = pytest.importorskip("gymnasium")
spaces = gymnasium.spaces


class Countdown(gymnasium.Env):
    """Counts down from a random number, by numbers or by the length of a text."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (Gymnasium's own form)
    observation_space = spaces.Dict({"left": spaces.Discrete(100), "place": spaces.Box(-1, 1, (2,))})

    def __init__(self, letters: str = "", image: bool = False, render_mode: str | None = None) -> None:
        self.action_space = spaces.Text(5, charset=letters) if letters else spaces.Discrete(3, start=-1)
        self.image, self.render_mode = image, render_mode

    def shown(self) -> Any:
        if self.image:
            return np.full((4, 6, 3), self.left, np.uint8)
        return {"left": self.left, "place": np.array([0.12345, -0.0], np.float32)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 9))
        return self.shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.left -= len(action) if isinstance(action, str) else int(action)
        return self.shown(), 2.0 if self.left <= 0 else -0.5, self.left <= 0, False, {}

    def render(self) -> np.ndarray:
        return np.full((2, 2, 3), 7, np.uint8)


class Switches(gymnasium.Env):
    """Refused: its actions are several switches at once."""

    action_space = spaces.MultiBinary(3)
    observation_space = spaces.Box(-1, 1, (1,))


@pytest.fixture(autouse=True)
def registered() -> Any:
    ids = {"Countdown-v0": Countdown, "Switches-v0": Switches}
    for name, kind in ids.items():
        gymnasium.register(name, entry_point=kind, max_episode_steps=12)
    yield
    for name in ids:
        del gymnasium.registry[name]


ENV = "gymnasium:Countdown-v0"


def test_discrete_actions_are_named_by_number_and_observations_are_readable() -> None:
    env = make_env(ENV, {"decimals": 2})
    observation, _ = env.reset(seed=1)
    left = int(observation.text.split("\n")[0].removeprefix("left: "))
    assert env.description.actions.names == ("-1", "0", "1")
    assert observation.text == f"left: {left}\nplace: [0.12, 0.0]"
    observation, reward, terminated, truncated, info = env.step(["1"])
    assert observation.text.startswith(f"left: {left - 1}\n")
    assert (reward, terminated, truncated, info) == (-0.5, False, False, {"success": False, "num_actions": 1})


def test_actions_take_the_names_given() -> None:
    env = make_env(ENV, {"action_names": ["back", "wait", "go"], "max_actions_per_turn": 9})
    first = env.reset(seed=1)[0].text
    assert env.step(["go", "back"])[0].text == first
    with pytest.raises(InputError, match="knows back, wait, go"):
        env.step(["1"])
    with pytest.raises(ConfigError, match="has 2 names, gymnasium:Countdown-v0 has 3 actions"):
        make_env(ENV, {"action_names": ["a", "b"]})


def test_the_environments_own_time_limit_is_truncated() -> None:
    env = make_env(ENV)
    env.reset(seed=1)
    assert env.description.max_turns == 12
    turns = [env.step(["0"]) for _ in range(12)]
    assert [turn[2:4] for turn in turns] == [(False, False)] * 11 + [(False, True)]
    assert turns[-1][4]["success"] is False


def test_our_turn_limit_is_terminated() -> None:
    env = make_env(ENV, {"max_turns": 2})
    env.reset(seed=1)
    env.step(["0"])
    assert env.step(["0"])[2:4] == (True, False)


@pytest.mark.parametrize(("threshold", "success"), [(None, True), (0.5, True), (1.9, False)])
def test_success_is_a_return_that_reaches_the_threshold(threshold: float | None, success: bool) -> None:
    env = make_env(ENV, {"success_reward": threshold, "max_actions_per_turn": 9})
    assert any(env.reset(seed=seed)[0].text.startswith("left: 4\n") for seed in range(50))
    _, reward, terminated, _, info = env.step(["1"] * 4)
    assert terminated and reward == 3 * -0.5 + 2.0
    assert info["success"] is success


def test_success_in_a_last_turn_without_actions_counts_too() -> None:
    env = make_env("gymnasium:CartPole-v1", {"max_turns": 3, "success_reward": 2})
    env.reset(seed=0)
    env.step(["0"])
    assert env.step(["1"])[4]["success"] is False
    assert env.step([])[1:] == (0.0, True, False, {"success": True, "num_actions": 0})


def test_the_reward_threshold_of_the_environment_is_used() -> None:
    env = make_env("gymnasium:CartPole-v1", {"max_turns": 3})
    env.reset(seed=0)
    env.step(["0"])
    env.step(["1"])
    assert env.step(["0"])[4]["success"] is False  # a return of 3, the threshold is 475


def test_free_text_goes_to_the_environment_unless_its_space_forbids_it() -> None:
    env = make_env(ENV, {"kwargs": {"letters": "abc"}, "max_turns": 9})
    left = int(env.reset(seed=1)[0].text.split("\n")[0].removeprefix("left: "))
    assert env.description.actions.is_text
    assert env.step(["xyz"])[0].text.startswith(f"left: {left}\n")
    assert env.step(["ab"])[0].text.startswith(f"left: {left - 2}\n")
    with pytest.raises(ConfigError, match="takes free text"):
        make_env(ENV, {"kwargs": {"letters": "abc"}, "action_names": ["a"]})


def test_images_come_from_the_observation_or_from_rendering() -> None:
    env = make_env(ENV, {"observation": "both"})
    observation, _ = env.reset(seed=1)
    assert observation.text and (observation.images[0] == 7).all()
    env = make_env(ENV, {"observation": "image", "kwargs": {"image": True}})
    observation, _ = env.reset(seed=1)
    assert observation.text == "" and observation.images[0].shape == (4, 6, 3)
    with pytest.raises(ConfigError, match="observation = 'image'"):
        make_env(ENV, {"kwargs": {"image": True}}).reset(seed=1)


def test_a_task_is_a_seed_with_how_the_environment_is_made() -> None:
    tasks = draw_tasks("gymnasium:FrozenLake-v1", {"kwargs": {"is_slippery": False}}, Split.TRAIN, 5, seed=0)
    for task in tasks:
        assert task.content == {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "seed": task.seed}
    assert len({task.id for task in tasks}) == 5


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("gymnasium:Switches-v0", {}, "only Discrete, Text and Box can be used"),
        ("gymnasium:NoSuchThing-v0", {}, "doesn't exist"),
        ("gymnasium:", {}, "env.name"),
        ("gymnasium:CartPole-v1", {"kwargs": {"nonsense": 1}}, "nonsense"),
        ("gymnasium:CartPole-v1", {"kwargs": {"sutton_barto_reward": object()}}, "env.options.kwargs"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(name: str, options: dict, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_env(name, options)


OWN_MODULE = """
import gymnasium

gymnasium.register("OwnWords-v0", entry_point="tests.envs.test_gymnasium_env:Countdown")
gymnasium.register("OwnRobot-v0", entry_point="gymnasium.envs.classic_control.pendulum:PendulumEnv")
"""


@pytest.mark.parametrize(("own_id", "is_robot"), [("OwnWords-v0", False), ("OwnRobot-v0", True)])
def test_a_module_before_the_id_registers_it_in_every_process(
    own_id: str, is_robot: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_gymnasium_ids.py").write_text(OWN_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"gymnasium:own_gymnasium_ids:{own_id}"
    try:
        with contextlib.closing(make_env(name)) as env:
            assert (env.name, env.is_robot) == (name, is_robot)  # by this name another process finds it
            assert env.make_task(env.options, 3).env == name
    finally:
        for each in ("OwnWords-v0", "OwnRobot-v0"):
            gymnasium.registry.pop(each, None)
        sys.modules.pop("own_gymnasium_ids", None)
        make_gymnasium_type.cache_clear()
    with pytest.raises(ConfigError, match="no_such_module"):
        make_env(f"gymnasium:no_such_module:{own_id}")


def test_a_gymnasium_environment_passes_the_checker_without_an_oracle() -> None:
    report = check_env("gymnasium:CartPole-v1", num_tasks=5)
    assert report.ok, str(report)
    assert report["oracle_solves_the_tasks"].detail == "none"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(4), "4"),
        (np.float32(0.5), "0.5"),
        ("words", "words"),
        ((1, np.array([2, 3])), "(1, [2, 3])"),
        (np.array([[1, 2], [3, 4]]), "[1, 2]\n[3, 4]"),
        (np.array([True, False]), "[True, False]"),
        (np.array([-0.0001]), "[0.0]"),
    ],
)
def test_observations_as_text(value: Any, text: str) -> None:
    assert write_observation(value) == text
