"""The environment `robosuite`: robosuite's manipulation tasks by name, with one robot arm or, where needed,
two.

A task is the seed from which robosuite places its objects; the robot starts without noise, and the
model is built once per copy from one fixed seed, so that the task's content decides the episode.
`proprio` is joint positions and velocities, the hand's pose, and the fingers of every arm; `state` is
robosuite's own object state. Actions are those of its default controller: six numbers move the hand,
the last closes (+) or opens (-) the gripper. The dense reward is robosuite's shaped one (0 to 1).
There is a scripted expert for `Lift`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, ConfigError, InputError, RobotEnvDescription, Task
from stepwell.envs.robots import cameras
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotEnv, RobotOptions, round_numbers
from stepwell.envs.robots.packages import import_simulator
from stepwell.envs.tiles import Image

INSTRUCTIONS = {
    "Lift": "lift the red cube",
    "Stack": "put the red cube on the green cube",
    "NutAssembly": "put both nuts on their pegs",
    "NutAssemblySingle": "put the nut on its peg",
    "NutAssemblySquare": "put the square nut on the square peg",
    "NutAssemblyRound": "put the round nut on the round peg",
    "PickPlace": "put every object into its bin",
    "PickPlaceSingle": "put the object into its bin",
    "PickPlaceMilk": "put the milk into its bin",
    "PickPlaceBread": "put the bread into its bin",
    "PickPlaceCereal": "put the cereal box into its bin",
    "PickPlaceCan": "put the can into its bin",
    "Door": "open the door",
    "Wipe": "wipe the table clean",
    "ToolHang": "put the hook on the stand and hang the tool on it",
    "TwoArmLift": "lift the pot together",
    "TwoArmPegInHole": "put the peg into the hole",
    "TwoArmHandover": "hand the hammer over",
    "TwoArmTransport": "carry the hammer to the other bin and clear the trash",
}
PROPRIO = ("joint_pos", "joint_vel", "eef_pos", "eef_quat", "gripper_qpos", "gripper_qvel")
ABOVE = np.array([0.0, 0.0, 0.06])
COLLISION_GEOMS = 0  # the group of shapes that are felt and not seen


class RobosuiteOptions(RobotOptions):
    """Which task and robot, and what every robot environment can be asked for."""

    task: str = Field("Lift", description="a robosuite environment, such as Lift, Stack, PickPlaceCan, Door")
    robot: str = Field("Panda", description="a robosuite robot; tasks for two arms get two of it")
    camera: tuple[str, ...] = Field(
        ("agentview",), description="of agentview, frontview, birdview, sideview, robot0_eye_in_hand"
    )


class Robosuite(RobotEnv):
    """Tasks of robosuite: lift, stack, assemble, open or wipe, with a Panda or another arm."""

    name: ClassVar[str] = "robosuite"
    extra: ClassVar[str] = "robosuite"
    package: ClassVar[str | None] = "robosuite"
    Options: ClassVar[type[Settings]] = RobosuiteOptions
    num_checked: ClassVar[int] = 5
    options: RobosuiteOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self.has_oracle = self.options.task == "Lift"
        self._sim: Any = None
        self._seen: dict[str, npt.NDArray[Any]] = {}

    def layout(self) -> RobotEnvDescription:
        """Opens the simulator: sizes depend on task and robot."""
        if not self._seen:
            self._seen = self._open_simulator().reset()
        arrays = {
            name: ArraySpec(array.shape)
            for name, array in make_vectors(self._seen, self.options.shows_state).items()
        }
        arrays |= self.options.image_specs
        name = f"{self.name}/{self.options.task}"
        return RobotEnvDescription(name, arrays, self._open_simulator().action_dim, self.options.max_actions)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The seed of robosuite's placements."""
        content: dict[str, JSON] = {"task": options.task, "robot": options.robot, "seed": seed}
        instruction = INSTRUCTIONS.get(options.task, f"solve {options.task}")
        return Task(cls.name, content, instruction=instruction, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Place the objects by the task's seed."""
        content: dict[str, Any] = task.content
        if (content.get("task"), content.get("robot")) != (self.options.task, self.options.robot):
            raise InputError(
                f"task {task.id} is {content.get('task')!r} with {content.get('robot')!r}, "
                f"not {self.options.task!r} with {self.options.robot!r}"
            )
        sim = self._open_simulator()
        # placements draw from this one generator, wherever they hold it
        sim.rng.bit_generator.state = np.random.default_rng(content["seed"]).bit_generator.state
        self._seen = sim.reset()

    def act(self, action: FloatArray) -> ActionEffect:
        """One control step of 50 milliseconds."""
        self._seen, reward, _, _ = self._sim.step(action)
        return ActionEffect(bool(self._sim._check_success()), float(reward))

    def arrays(self) -> Arrays:
        """The arrays of arms, objects and images."""
        return make_vectors(self._seen, self.options.shows_state) | {
            camera: self.image(camera) for camera in self.options.cameras
        }

    def expert(self) -> npt.NDArray[Any]:
        """For `Lift`: move above the cube, go down, close the gripper, go up."""
        if not self.has_oracle:
            return super().expert()
        to_cube = self._seen["cube_pos"] - self._seen["robot0_eef_pos"]
        action = np.zeros(self._sim.action_dim)
        if self._sim._check_grasp(gripper=self._sim.robots[0].gripper, object_geoms=self._sim.cube):
            action[2], action[-1] = 1.0, 1.0
        elif np.linalg.norm(to_cube) < 0.015:
            action[-1] = 1.0
        else:
            is_above = np.linalg.norm(to_cube[:2]) < 0.015
            action[:3] = 10.0 * (to_cube if is_above else to_cube + ABOVE)
            action[-1] = -1.0
        return action

    def facts(self) -> dict[str, JSON]:
        """Positions in metres: of hands, and of what robosuite observes of the objects."""
        return list_positions(self._seen)

    def image(self, camera: str) -> Image:
        """Rendered off screen, without robosuite's own renderer."""
        sim = self._sim.sim
        key = f"{self.name}/{self.options.task}/{self.options.robot}"
        model, data = sim.model._model, sim.data._data
        return cameras.render_image(
            key, model, data, camera, self.options.image_size, hidden=(COLLISION_GEOMS,)
        )

    def close(self) -> None:
        """Close the simulator."""
        if self._sim is not None:
            self._sim.close()
        self._sim, self._seen = None, {}

    def _open_simulator(self) -> Any:
        if self._sim is None:
            self._sim = open_simulator(self.options.task, self.options.robot)
        return self._sim


def open_simulator(task: str, robot: str) -> Any:
    """A robosuite environment without renderer, horizon and noise."""
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
    suite = import_simulator("robosuite", env="robosuite", extra="robosuite")
    known = set(suite.ALL_ENVIRONMENTS)
    if task not in known:
        raise ConfigError(f"env.options.task: robosuite has no {task!r}; it has {', '.join(sorted(known))}")
    return suite.make(
        task,
        robots=[robot, robot] if task.startswith("TwoArm") else robot,
        initialization_noise=None,
        has_renderer=False,
        has_offscreen_renderer=False,
        use_camera_obs=False,
        use_object_obs=True,
        reward_shaping=True,
        ignore_done=True,
        hard_reset=False,
        seed=0,
    )


def make_vectors(seen: Mapping[str, npt.NDArray[Any]], shows_state: bool) -> Arrays:
    """`proprio` and, if asked for, `state` of what robosuite observed."""
    arms = sorted({name.split("_")[0] for name in seen if name.startswith("robot")})
    parts = [seen[f"{arm}_{part}"] for arm in arms for part in PROPRIO if f"{arm}_{part}" in seen]
    shown: Arrays = {"proprio": np.concatenate(parts).astype(np.float32)}
    if shows_state:
        shown["state"] = np.asarray(seen["object-state"], dtype=np.float32)
    return shown


def list_positions(seen: Mapping[str, npt.NDArray[Any]]) -> dict[str, JSON]:
    """Where hands and objects are, in metres."""
    hands = [name for name in seen if name.endswith("_eef_pos") and "_to_" not in name]
    things = [
        name
        for name, value in seen.items()
        if name.endswith("_pos")
        and value.shape == (3,)
        and not name.startswith("robot")
        and "_to_" not in name
    ]
    return {name.removesuffix("_pos"): round_numbers(seen[name]) for name in (*hands, *things)}
