"""The table in ManiSkill: a Panda with seven joints and fingers that must hold, simulated by SAPIEN.

The same tasks, positions and primitives as `scene.py` behind the same methods, for `simulator = "maniskill"`.
Primitives are paths of the gripper, driven by ManiSkill's controller of end-effector poses with the fingers
pointing down: a pick can slip, a push can miss, and an arm can be in the way. ManiSkill has no drawer of
ours, so there are three tasks: place, stack and align.

Tested with ManiSkill 3.0.1 on the CPU (`make test-extra-maniskill`), but for its images.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.core import ConfigError
from stepwell.envs.primitive_skill.scene import GRASP
from stepwell.envs.primitive_skill.table import CUBE, Point, TableLayout
from stepwell.envs.robots.packages import import_simulator
from stepwell.envs.tiles import Image

TASKS = ("place", "stack", "align")
COLOURS = {
    "red cube": (0.85, 0.12, 0.1, 1.0),
    "green cube": (0.1, 0.65, 0.2, 1.0),
    "purple cube": (0.5, 0.15, 0.7, 1.0),
}
BASE = (-0.615, 0.0, 0.0)  # metres, as all below: where the Panda stands behind the table
HOVER, LOWEST = 0.22, 0.012
STRIDE, NEAR = 0.02, 0.004  # how far a target runs ahead of the gripper; how exactly it must arrive
MAX_WAIT, DWELL = 40, 15  # control steps
OPEN, CLOSED = 1.0, -1.0
Vector = npt.NDArray[np.float64]


class ManiSkillScene:
    """One table in SAPIEN."""

    def __init__(self, layout: TableLayout, image_size: int) -> None:
        if layout.task not in TASKS:
            raise ConfigError(
                f"env.options.task: {layout.task!r} is not a task of ManiSkill; choose one of "
                f'{", ".join(TASKS)}, or env.options.simulator = "mujoco"'
            )
        self._env = _make_table_type()(layout, image_size)
        self._targets = {name: at for name, at in layout.places.items() if name not in COLOURS}

    @property
    def held(self) -> str | None:
        """What is between the fingers, by their forces."""
        grasps = self._env.agent.is_grasping
        return next(
            (name for name, cube in self._env.cubes.items() if bool(_to_numpy(grasps(cube)).any())), None
        )

    def list_places(self) -> dict[str, Point]:
        """Where everything is now."""
        return {name: _to_mm(self._get_position(name)) for name in self._env.cubes} | self._targets

    def pick_thing(self, at: Point) -> bool:
        """Grasp what lies there, if anything does and the hand is free."""
        if self.held is not None:
            return False
        point = np.array(at) / 1000
        near = min(self._env.cubes, key=lambda name: float(np.linalg.norm(self._get_position(name) - point)))
        if np.linalg.norm(self._get_position(near) - point) > GRASP / 1000:
            return False
        x, y, z = self._get_position(near)
        self._move_gripper((x, y, HOVER), OPEN)
        self._move_gripper((x, y, max(z, LOWEST)), OPEN)
        self._hold_still(CLOSED)
        self._move_gripper((x, y, HOVER), CLOSED)
        return self.held is not None

    def place_thing(self, at: Point) -> bool:
        """Lower what is held over a point until it no longer sinks, and let go."""
        name = self.held
        if name is None:
            return False
        x, y = at[0] / 1000, at[1] / 1000
        self._move_gripper((x, y, HOVER), CLOSED)
        height, lowest = HOVER, max(at[2], CUBE // 2) / 1000
        while height > lowest:
            before = self._get_position(name)[2]
            height = max(height - 0.005, lowest)
            self._move_gripper((x, y, height), CLOSED)
            if before - self._get_position(name)[2] < 0.002:
                break
        self._hold_still(OPEN)
        self._move_gripper((x, y, HOVER), OPEN)
        return True

    def push_thing(self, start: Point, end: Point) -> bool:
        """Move the closed fingers along a line."""
        if self.held is not None:
            return False
        first, last = np.array(start) / 1000, np.array(end) / 1000
        before = self.list_places()
        for x, y, z in ((*first[:2], HOVER), first, last, (*last[:2], HOVER)):
            self._move_gripper((x, y, max(z, LOWEST)), CLOSED)
        return self.list_places() != before

    def render_image(self, size: int) -> Image:
        """The table from the front, in the size that the scene was made with."""
        found = _to_numpy(self._env.render())
        assert found.shape[-3:-1] == (size, size)
        return np.ascontiguousarray(found.reshape(size, size, -1)[..., :3], dtype=np.uint8)

    def close(self) -> None:
        """Close the simulator; a second time does nothing."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def _move_gripper(self, to: tuple[float, float, float], grip: float) -> None:
        """Lead the gripper along a line; give up where it cannot go on."""
        start, end = self._get_gripper(), np.array(to)
        num_strides = max(1, math.ceil(float(np.linalg.norm(end - start)) / STRIDE))
        for at in range(1, num_strides + 1):
            self._step_arm(start + (end - start) * at / num_strides, grip)
        for _ in range(MAX_WAIT):
            before = self._get_gripper()
            if np.linalg.norm(end - before) <= NEAR:
                return
            self._step_arm(end, grip)
            if np.linalg.norm(self._get_gripper() - before) < NEAR / 10:
                return

    def _hold_still(self, grip: float) -> None:
        here = self._get_gripper()
        for _ in range(DWELL):
            self._step_arm(here, grip)

    def _step_arm(self, to: Vector, grip: float) -> None:
        x, y, z = to - np.array(BASE)
        self._env.step(np.array([x, y, z, math.pi, 0.0, 0.0, grip], dtype=np.float32))

    def _get_gripper(self) -> Vector:
        return _to_numpy(self._env.agent.tcp.pose.p).reshape(3).astype(float)

    def _get_position(self, name: str) -> Vector:
        return _to_numpy(self._env.cubes[name].pose.p).reshape(3).astype(float)


@lru_cache(maxsize=1)
def _make_table_type() -> Any:
    """The task as ManiSkill wants one: a class, made when its package is there."""
    sapien, envs, actors, tables, cameras, views = (
        import_simulator(module, env="primitive_skill with simulator = maniskill", extra="maniskill")
        for module in (
            "sapien",
            "mani_skill.envs.sapien_env",
            "mani_skill.utils.building.actors",
            "mani_skill.utils.scene_builder.table",
            "mani_skill.sensors.camera",
            "mani_skill.utils.sapien_utils",
        )
    )

    class Table(envs.BaseEnv):  # type: ignore[misc, name-defined]
        SUPPORTED_ROBOTS = ("panda",)

        def __init__(self, layout: TableLayout, image_size: int) -> None:
            self.layout, self.image_size = layout, image_size
            self.cubes: dict[str, Any] = {}
            super().__init__(
                num_envs=1,
                obs_mode="none",
                reward_mode="none",
                control_mode="pd_ee_pose",
                render_mode="rgb_array",
                robot_uids="panda",
                sim_backend="physx_cpu",
            )

        @property
        def _default_human_render_camera_configs(self) -> Any:
            view = views.look_at([0.75, 0.0, 0.65], [0.0, 0.0, 0.0])
            return cameras.CameraConfig("render_camera", view, self.image_size, self.image_size, 1, 0.01, 100)

        def _load_agent(self, options: dict[str, Any]) -> None:
            super()._load_agent(options, sapien.Pose(p=list(BASE)))

        def _load_scene(self, options: dict[str, Any]) -> None:
            self.table_scene = tables.TableSceneBuilder(env=self, robot_init_qpos_noise=0.0)
            self.table_scene.build()
            for name, at in self.layout.places.items():
                pose = sapien.Pose(p=[number / 1000 for number in at])
                actor = _build_actor(actors, self.scene, name, pose)
                if name in COLOURS:
                    self.cubes[name] = actor

        def _initialize_episode(self, env_idx: Any, options: dict[str, Any]) -> None:
            self.table_scene.initialize(env_idx)
            for name, cube in self.cubes.items():
                cube.set_pose(sapien.Pose(p=[number / 1000 for number in self.layout.places[name]]))

    return Table


def _build_actor(actors: Any, scene: Any, name: str, pose: Any) -> Any:
    """A cube, where `name` is a colour, else the mark of a target."""
    if name in COLOURS:
        colour = list(COLOURS[name])
        return actors.build_cube(scene, half_size=CUBE / 2000, color=colour, name=name, initial_pose=pose)
    return actors.build_red_white_target(
        scene,
        radius=CUBE / 1000,
        thickness=1e-4,
        name=name,
        body_type="kinematic",
        add_collision=False,
        initial_pose=pose,
    )


def _to_numpy(values: Any) -> npt.NDArray[Any]:
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)


def _to_mm(at: Vector) -> Point:
    x, y, z = (round(1000 * float(number)) for number in at)
    return x, y, z
