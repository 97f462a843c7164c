"""The environment `maniskill`: ManiSkill 3's tasks by Gymnasium id, simulated by SAPIEN on the CPU.

Tested with ManiSkill 3.0.1 (`make test-extra-maniskill`); where there was no graphics device, so images
were seen from a stand-in only.

A task is the seed that ManiSkill resets with. `proprio` is what it observes of the robot, `state` what
it observes beside it (poses and goals), images are those of the cameras its scene has. Success is
`info["success"]`; ManiSkill's own time limit and failures do not end an episode. There is no expert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, ConfigError, InputError, RobotEnvDescription, Task
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotEnv, RobotOptions, round_numbers
from stepwell.envs.robots.packages import import_simulator
from stepwell.envs.tiles import Image

INSTRUCTIONS = {
    "PickCube-v1": "pick up the red cube and hold it at the goal",
    "PushCube-v1": "push the cube onto the target",
    "PullCube-v1": "pull the cube onto the target",
    "StackCube-v1": "put the red cube on the green cube",
    "PegInsertionSide-v1": "insert the peg into the hole in the side of the box",
    "PlugCharger-v1": "plug the charger into the socket",
    "LiftPegUpright-v1": "stand the peg upright",
    "RollBall-v1": "roll the ball to the goal",
    "PokeCube-v1": "poke the cube to the goal with the peg",
    "PlaceSphere-v1": "put the sphere into the bin",
}
NO_LIMIT = 1 << 30


class ManiSkillOptions(RobotOptions):
    """Which task and controller, and what every robot environment can be asked for."""

    task: str = Field(  # no "module:" before the id: Gymnasium would import it
        "PickCube-v1", pattern=r"^[A-Za-z0-9_.-]+$", description="a Gymnasium id that ManiSkill registers"
    )
    control_mode: str = Field("pd_ee_delta_pose", description="one of the robot's controllers")
    camera: tuple[str, ...] = Field(("base_camera",), description="sensors of the task's scene")


class ManiSkill(RobotEnv):
    """ManiSkill: manipulation tasks in SAPIEN, by Gymnasium id."""

    name: ClassVar[str] = "maniskill"
    extra: ClassVar[str] = "maniskill"
    package: ClassVar[str | None] = "mani_skill"
    Options: ClassVar[type[Settings]] = ManiSkillOptions
    has_oracle: bool = False
    num_checked: ClassVar[int] = 3
    options: ManiSkillOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self.has_process = self.options.reward == "dense"  # not every task has a dense reward
        self._sim: Any = None
        self._seen: dict[str, Any] = {}

    def layout(self) -> RobotEnvDescription:
        """Opens the simulator: sizes depend on the task and its robot."""
        if not self._seen:
            self._seen = self._open_simulator().reset(seed=0)[0]
        arrays = {name: ArraySpec(array.shape) for name, array in self._make_vectors().items()}
        arrays |= self.options.image_specs
        (action_dim,) = self._open_simulator().action_space.shape
        return RobotEnvDescription(
            f"{self.name}/{self.options.task}", arrays, action_dim, self.options.max_actions
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The seed of ManiSkill's reset."""
        content: dict[str, JSON] = {"task": options.task, "seed": seed}
        words = INSTRUCTIONS.get(options.task) or split_task_name(options.task)
        return Task(cls.name, content, instruction=words, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """ManiSkill's reset with the task's seed."""
        content: dict[str, Any] = task.content
        if content.get("task") != self.options.task:
            raise InputError(f"task {task.id} is {content.get('task')!r}, not {self.options.task!r}")
        self._seen, _ = self._open_simulator().reset(seed=content["seed"])

    def act(self, action: FloatArray) -> ActionEffect:
        """One control step."""
        self._seen, reward, _, _, info = self._sim.step(action)
        return ActionEffect(bool(info["success"]), float(reward) if self.has_process else 0.0)

    def arrays(self) -> Arrays:
        """Robot, poses and goals, images."""
        return self._make_vectors() | {camera: self.image(camera) for camera in self.options.cameras}

    def facts(self) -> dict[str, JSON]:
        """What ManiSkill observes beside the robot's joints."""
        return {name: round_numbers(value) for name, value in self._seen["extra"].items()}

    def image(self, camera: str) -> Image:
        """From the observation where it has images, else ManiSkill's rendering for people."""
        sensors = self._seen.get("sensor_data")
        if sensors is None:
            return np.asarray(self._sim.render(), dtype=np.uint8)
        if camera not in sensors:
            raise InputError(
                f"env.options.camera: there is no {camera!r}; the scene has {', '.join(sensors)}"
            )
        return np.asarray(sensors[camera]["rgb"], dtype=np.uint8)

    def close(self) -> None:
        """Close the simulator."""
        if self._sim is not None:
            self._sim.close()
        self._sim, self._seen = None, {}

    def _make_vectors(self) -> Arrays:
        shown: Arrays = {"proprio": flatten_arrays(self._seen["agent"])}
        if self.options.shows_state:
            shown["state"] = flatten_arrays(self._seen["extra"])
        return shown

    def _open_simulator(self) -> Any:
        if self._sim is None:
            self._sim = open_simulator(self.options)
        return self._sim


def open_simulator(options: ManiSkillOptions) -> Any:
    """One ManiSkill environment on the CPU that returns numpy arrays."""
    import gymnasium

    import_simulator("mani_skill.envs", env="maniskill", extra="maniskill")  # registers its tasks
    wrappers = import_simulator("mani_skill.utils.wrappers.gymnasium", env="maniskill", extra="maniskill")
    modes = {"state": "state_dict", "camera": "rgb", "both": "state_dict+rgb"}
    size = {"width": options.image_size, "height": options.image_size}
    try:
        env = gymnasium.make(
            options.task,
            num_envs=1,
            obs_mode=modes[options.observation],
            control_mode=options.control_mode,
            reward_mode="normalized_dense" if options.reward == "dense" else "sparse",
            render_mode="rgb_array",
            sensor_configs=size,
            human_render_camera_configs=size,
            sim_backend="physx_cpu",
            max_episode_steps=NO_LIMIT,
        )
    except (gymnasium.error.Error, NotImplementedError, AssertionError) as error:
        raise ConfigError(f"ManiSkill refuses env.options of {options.task!r}: {error}") from error
    return wrappers.CPUGymWrapper(env, ignore_terminations=True)


def flatten_arrays(values: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Nested named arrays as one vector, in the order in which they are named."""
    parts = [
        flatten_arrays(value) if isinstance(value, Mapping) else np.asarray(value, dtype=np.float32).ravel()
        for value in values.values()
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)


def split_task_name(task: str) -> str:
    """A task's id as words.

    >>> split_task_name("TurnFaucet-v1")
    'turn faucet'
    """
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|[a-z]+|\d+", task.split("-")[0])).lower()
