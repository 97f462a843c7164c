"""The table in ManiSkill, against a stand-in of it; the package itself: robots/test_maniskill_package.py."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stepwell.core import ConfigError
from stepwell.envs import make_env
from stepwell.envs.primitive_skill import maniskill_scene

HALF = 0.02


class Pose:
    def __init__(self, p: list[float]) -> None:
        self.p = np.array([p], dtype=np.float32)


class Actor:
    def __init__(self, name: str, pose: Pose) -> None:
        self.name, self.pose = name, pose

    def set_pose(self, pose: Pose) -> None:
        self.pose = pose

    @property
    def at(self) -> np.ndarray:
        return self.pose.p[0]


class Table:
    def __init__(self, env: Any, robot_init_qpos_noise: float) -> None:
        assert robot_init_qpos_noise == 0.0
        self.env = env

    def build(self) -> None:
        self.env.scene = self.env

    def initialize(self, env_idx: Any) -> None:
        self.env.agent.tcp.pose = Pose([-0.1, 0.0, 0.3])


class BaseEnv:
    """A gripper that goes where it is told, 3 cm a step; closed around a cube it takes it along."""

    def __init__(self, **settings: Any) -> None:
        assert settings["control_mode"] == "pd_ee_pose" and settings["robot_uids"] == "panda"
        self.actors: list[Actor] = []
        self.carried: Actor | None = None
        self.is_closed = False
        self._load_agent({})
        self._load_scene({})
        self._initialize_episode(np.arange(1), {})

    def _load_agent(self, options: dict[str, Any], pose: Pose | None = None) -> None:
        assert pose is not None and pose.p[0, 0] == np.float32(-0.615)
        tcp = types.SimpleNamespace(pose=Pose([0, 0, 0]))
        grasping = lambda actor: np.array([actor is self.carried])  # noqa: E731
        self.agent = types.SimpleNamespace(tcp=tcp, is_grasping=grasping)

    def step(self, action: np.ndarray) -> None:
        assert action.shape == (7,) and action[3] == np.float32(np.pi)
        here, to = self.agent.tcp.pose.p[0], action[:3] + np.array([-0.615, 0, 0], dtype=np.float32)
        far = np.linalg.norm(to - here)
        there = to if far <= 0.03 else here + (to - here) * 0.03 / far
        if self.carried is not None:
            there[2] = max(there[2], self._floor(self.carried, there))
            self.carried.pose = Pose(there.tolist())
        self.agent.tcp.pose = Pose(there.tolist())
        if action[6] < 0 and not self.is_closed:
            near = [one for one in self.actors if np.linalg.norm(one.at - there) < 0.015]
            self.carried = near[0] if near else None
        elif action[6] > 0 and self.carried is not None:
            x, y, _ = self.carried.at.tolist()
            self.carried.pose = Pose([x, y, self._floor(self.carried, self.carried.at)])
            self.carried = None
        self.is_closed = bool(action[6] < 0)
        if self.is_closed and self.carried is None:
            self._shove(there)

    def _floor(self, actor: Actor, at: np.ndarray) -> float:
        below = [
            o.at[2] + 2 * HALF for o in self.actors if o is not actor and (abs(o.at - at)[:2] < 0.03).all()
        ]
        return max([HALF, *below])

    def _shove(self, gripper: np.ndarray) -> None:
        for actor in self.actors:
            far = actor.at - gripper
            if (abs(far) < HALF).all():
                x, _, z = actor.at.tolist()
                actor.pose = Pose([x, gripper[1] + HALF * (1 if far[1] > 0 else -1), z])

    def render(self) -> np.ndarray:
        view = self._default_human_render_camera_configs  # type: ignore[attr-defined]
        return np.full((1, view.size, view.size, 3), 7, dtype=np.uint8)

    def close(self) -> None:
        self.actors = []


def build_cube(scene: Any, half_size: float, color: Any, name: str, initial_pose: Pose) -> Actor:
    assert half_size == HALF and len(color) == 4
    scene.actors.append(Actor(name, initial_pose))
    return scene.actors[-1]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    camera = lambda uid, pose, width, height, *more: types.SimpleNamespace(size=width)  # noqa: E731
    parts: dict[str, dict[str, Any]] = {
        "sapien": {"Pose": Pose},
        "mani_skill": {},
        "mani_skill.envs": {},
        "mani_skill.envs.sapien_env": {"BaseEnv": BaseEnv},
        "mani_skill.utils": {},
        "mani_skill.utils.building": {},
        "mani_skill.utils.building.actors": {
            "build_cube": build_cube,
            "build_red_white_target": lambda scene, **settings: None,
        },
        "mani_skill.utils.scene_builder": {},
        "mani_skill.utils.scene_builder.table": {"TableSceneBuilder": Table},
        "mani_skill.sensors": {},
        "mani_skill.sensors.camera": {"CameraConfig": camera},
        "mani_skill.utils.sapien_utils": {"look_at": lambda eye, target: None},
    }
    for name, members in parts.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    maniskill_scene._make_table_type.cache_clear()
    yield
    maniskill_scene._make_table_type.cache_clear()


@pytest.mark.parametrize("task", ["place", "stack", "align"])
def test_the_oracles_primitives_solve_the_tasks(stand_in: None, task: str) -> None:
    env = make_env("primitive_skill", {"task": task, "simulator": "maniskill"})
    for seed in range(3):
        env.reset(seed=seed)
        total = 0.0
        for text in env.oracle():
            _, reward, terminated, _, info = env.step([text])
            total += reward
        assert terminated and info["success"]
        assert total == pytest.approx(
            10 + 2 - 0.1 * 3
        )  # three primitives before the last, one of them a subgoal
    env.close()


def test_what_is_held_is_known_and_seen(stand_in: None) -> None:
    options = {"task": "align", "simulator": "maniskill", "observation": "image", "image_size": 32}
    env = make_env("primitive_skill", options)
    env.reset(seed=1)
    first = env.oracle()[0].split("|")[0]
    observation, *_ = env.step([first])
    assert (
        "The hand holds something." in observation.text and "cube" not in observation.text.split("Object")[1]
    )
    assert observation.images[0].shape == (32, 32, 3)
    assert "The hand holds the red cube." in env.state()["natural_language"]  # type: ignore[index]


def test_a_pick_beside_everything_has_no_effect(stand_in: None) -> None:
    env = make_env("primitive_skill", {"task": "stack", "simulator": "maniskill"})
    env.reset(seed=0)
    before = env.state()
    observation, reward, *_ = env.step(["pick(-250,250,20)|place(0,0,100)"])
    assert "Without effect: pick(-250,250,20), place(0,0,100)." in observation.text
    assert reward == pytest.approx(-0.2) and env.state() == before


def test_a_push_moves_what_is_in_the_way(stand_in: None) -> None:
    env = make_env("primitive_skill", {"task": "align", "simulator": "maniskill"})
    env.reset(seed=1)
    x, y, z = env._scene.list_places()["red cube"]  # type: ignore[attr-defined]
    side = 1 if y > 0 else -1
    env.step([f"push({x},{y + side * 45},{z},{x},{side * 20},{z})"])
    moved = env._scene.list_places()["red cube"]  # type: ignore[attr-defined]
    assert abs(moved[1]) <= 20 and moved[0] == x


def test_any_task_is_one_of_those_that_maniskill_has(stand_in: None) -> None:
    env = make_env("primitive_skill", {"simulator": "maniskill"})
    tasks = {env.make_task(env.options, seed).tags[0] for seed in range(30)}
    assert tasks == {"place", "stack", "align"}
    with pytest.raises(ConfigError, match=r"'drawer' is not a task of ManiSkill.*simulator = \"mujoco\""):
        make_env("primitive_skill", {"task": "drawer", "simulator": "maniskill"}).reset(seed=0)


@pytest.mark.skipif(importlib.util.find_spec("mani_skill") is not None, reason="ManiSkill is installed")
def test_without_the_package_its_first_reset_says_what_to_install() -> None:
    maniskill_scene._make_table_type.cache_clear()
    env = make_env("primitive_skill", {"task": "stack", "simulator": "maniskill"})
    with pytest.raises(ConfigError, match=r"pip install \"stepwell\[maniskill\]\""):
        env.reset(seed=0)
