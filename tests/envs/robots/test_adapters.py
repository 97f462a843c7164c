"""Environments whose packages may be missing: what is said then, and the adapters beside stand-ins.

The stand-ins have the interface that ManiSkill and RoboCasa publish (names, arguments and shapes), so that
these tests hold our side of it; they say nothing about the real packages. ManiSkill itself is played in
`test_maniskill_package.py`; RoboCasa is in no registry.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from stepwell.core import ConfigError, EnvError
from stepwell.envs import make_env
from stepwell.envs.check import check_env
from stepwell.envs.robots.maniskill_env import flatten_arrays

PACKAGES = {
    "metaworld": "metaworld",
    "fetch": "gymnasium_robotics",
    "robosuite": "robosuite",
    "libero": "libero",
    "maniskill": "mani_skill",
    "robocasa": "robocasa",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_one_line_that_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    if find(PACKAGES[name]) is not None:  # pretend: an entry of None makes the import fail as if not there
        for module in [m for m in sys.modules if m.split(".")[0] == PACKAGES[name]]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, PACKAGES[name], None)
        _forget_opened(name)
    for refused in (lambda: make_env(name).reset(seed=0), lambda: check_env(name)):
        with pytest.raises(ConfigError) as refusal:
            refused()
        message = str(refusal.value)
        assert f'pip install "stepwell[{name}]"' in message and "\n" not in message
    _forget_opened(name)


def _forget_opened(name: str) -> None:
    from stepwell.envs.robots.fetch import simulator as fetch
    from stepwell.envs.robots.metaworld import simulator as metaworld

    for cache in (metaworld.make_simulator_type, metaworld.find_vector_bounds, fetch._make_simulator_type):
        cache.cache_clear()


class Cart:
    """A point in the plane that must come to a goal; what both stand-ins simulate."""

    def place(self, rng: np.random.Generator) -> None:
        self.at = np.zeros(2)
        angle = rng.uniform(0, 2 * np.pi)
        self.goal = 3 * np.array([np.cos(angle), np.sin(angle)])

    def move(self, action: np.ndarray) -> None:
        self.at = self.at + 0.5 * np.asarray(action)[:2]

    @property
    def is_there(self) -> bool:
        return bool(np.linalg.norm(self.at - self.goal) < 0.3)

    def image(self, size: int) -> np.ndarray:
        image = np.tile(np.linspace(0, 255, size).astype(np.uint8)[:, None, None], (1, size, 3))
        image[0, :, 0] = int(10 * abs(self.at[0]))
        return image


class StandInManiSkill(gymnasium.Env):
    """One environment of ManiSkill's kind, as its CPU wrapper shows it."""

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs, self.cart = kwargs, Cart()
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.render_mode = kwargs["render_mode"]

    def _obs(self) -> dict[str, Any]:
        mode, size = self.kwargs["obs_mode"], self.kwargs["sensor_configs"]["width"]
        seen: dict[str, Any] = {"agent": {"qpos": self.cart.at, "qvel": np.zeros(2)}}
        seen["extra"] = {"goal_pos": self.cart.goal, "is_grasped": np.array(False)}
        if "rgb" in mode:
            seen["sensor_data"] = {"base_camera": {"rgb": self.cart.image(size)}}
        return seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.cart.place(np.random.default_rng(seed))
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.cart.move(action)
        reward = -float(np.linalg.norm(self.cart.at - self.cart.goal))
        return self._obs(), reward, False, False, {"success": np.bool_(self.cart.is_there)}

    def render(self) -> np.ndarray:
        return self.cart.image(self.kwargs["human_render_camera_configs"]["width"])


@pytest.fixture
def mani_skill(monkeypatch: pytest.MonkeyPatch) -> None:
    wrappers = ModuleType("mani_skill.utils.wrappers.gymnasium")
    wrappers.CPUGymWrapper = lambda env, ignore_terminations: env  # type: ignore[attr-defined]
    names = ("mani_skill", "mani_skill.envs", "mani_skill.utils", "mani_skill.utils.wrappers")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, wrappers.__name__, wrappers)

    def make(task: str, **kwargs: Any) -> StandInManiSkill:
        if task != "PickCube-v1":
            raise gymnasium.error.NameNotFound(f"Environment `{task}` doesn't exist.")
        assert kwargs["num_envs"] == 1 and kwargs["sim_backend"] == "physx_cpu"
        return StandInManiSkill(**kwargs)

    monkeypatch.setattr(gymnasium, "make", make)


@pytest.mark.parametrize("observation", ["state", "both"])
@pytest.mark.parametrize("reward", ["sparse", "dense"])
def test_the_maniskill_adapter_keeps_the_contract(mani_skill: None, observation: str, reward: str) -> None:
    report = check_env("maniskill", {"observation": observation, "reward": reward, "max_actions": 20})
    assert report.ok, str(report)


def test_maniskill_shows_the_robot_apart_from_the_rest(mani_skill: None) -> None:
    env = make_env("maniskill", {"observation": "both", "image_size": 16})
    arrays = env.reset(seed=1)[0].arrays
    assert {name: array.shape for name, array in arrays.items()} == {
        "proprio": (4,), "state": (3,), "base_camera": (16, 16, 3),
    }  # fmt: skip
    assert env.reset(seed=1)[0].instruction == "pick up the red cube and hold it at the goal"
    with pytest.raises(EnvError, match="no scripted expert"):
        env.oracle()
    with pytest.raises(ConfigError, match=r"refuses env\.options of 'Nothing-v1'"):
        make_env("maniskill", {"task": "Nothing-v1"}).reset(seed=0)


def test_nested_observations_are_flattened_in_their_order() -> None:
    nested = {"qpos": np.array([1.0, 2.0]), "controller": {"target": np.array([[3.0]])}, "on": np.array(True)}
    assert flatten_arrays(nested).tolist() == [1.0, 2.0, 3.0, 1.0] and flatten_arrays({}).shape == (0,)


class StandInRoboCasa:
    """A robosuite environment as RoboCasa's `create_env` returns it."""

    action_dim = 12

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs, self.cart, self.rng = kwargs, Cart(), np.random.default_rng(kwargs["seed"])

    def _obs(self) -> dict[str, np.ndarray]:
        size = self.kwargs["camera_heights"]
        seen = {f"{camera}_image": self.cart.image(size)[::-1] for camera in self.kwargs["camera_names"]}
        hand = {"gripper_qpos": 2, "base_quat": 4, "base_to_eef_pos": 3, "base_to_eef_quat": 4}
        seen |= {f"robot0_{name}": np.zeros(size) for name, size in hand.items()}
        at, goal = np.append(self.cart.at, 0.0), np.append(self.cart.goal, 0.0)
        return seen | {"robot0_base_pos": at, "obj_pos": goal, "object-state": self.cart.goal}

    def reset(self) -> dict[str, np.ndarray]:
        self.cart.place(self.rng)
        return self._obs()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, dict[str, Any]]:
        self.cart.move(action)
        return self._obs(), 0.0, False, {}

    def _check_success(self) -> bool:
        return self.cart.is_there

    def get_ep_meta(self) -> dict[str, str]:
        return {"lang": "pick the apple from the counter and place it in the cabinet"}

    def close(self) -> None:
        self.cart = Cart()


@pytest.fixture
def robocasa(monkeypatch: pytest.MonkeyPatch) -> None:
    env_utils = SimpleNamespace(create_env=lambda env_name, robots, split, **rest: StandInRoboCasa(**rest))
    base = SimpleNamespace(REGISTERED_ENVS={"PickPlaceCounterToCabinet": object})
    for name in ("robocasa", "robocasa.utils", "robosuite", "robosuite.environments"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "robocasa.utils.env_utils", env_utils)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "robosuite.environments.base", base)  # type: ignore[arg-type]


def test_the_robocasa_adapter_keeps_the_contract(robocasa: None) -> None:
    report = check_env("robocasa", {"observation": "both", "max_actions": 20, "image_size": 16})
    assert report.ok, str(report)


def test_robocasa_tells_the_words_of_the_kitchen_and_turns_images_upright(robocasa: None) -> None:
    env = make_env("robocasa", {"image_size": 16})
    seen = env.reset(seed=3)[0]
    assert seen.instruction == "pick the apple from the counter and place it in the cabinet"
    assert env.task.instruction == "pick place counter to cabinet"
    assert list(seen.arrays) == ["proprio", "robot0_agentview_left", "robot0_eye_in_hand"]
    column = seen.arrays["robot0_agentview_left"][1:, 0, 1].astype(int)
    assert seen.arrays["proprio"].shape == (16,) and (np.diff(column) > 0).all()
    with pytest.raises(ConfigError, match="RoboCasa has no 'Fly'"):
        make_env("robocasa", {"task": "Fly"}).reset(seed=0)
