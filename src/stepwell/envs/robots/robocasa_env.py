"""The environment `robocasa`: RoboCasa's kitchen tasks by name, with an arm on a moving base.

Written against RoboCasa's published interface (`robocasa.utils.env_utils.create_env`, which makes a
robosuite environment) and tried against a stand-in of it, not against the package, whose scenes are
downloaded apart and was not available where this was written.

A task is a seed: RoboCasa draws kitchen, objects, places and the words of the instruction from it, and
builds a new scene at every reset (slow). Those words are in the observation; the task itself is called
by its name. `proprio` [16] is fingers, base and the hand relative to the base. What objects there are
varies from kitchen to kitchen, so that policies are shown images; `state` is there for tasks whose
objects are always as many. Success is what RoboCasa checks; no dense reward, no expert.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, ConfigError, EnvError, InputError, RobotEnvDescription, Task
from stepwell.envs.robots import cameras
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotEnv, RobotOptions
from stepwell.envs.robots.maniskill_env import split_task_name
from stepwell.envs.robots.packages import import_simulator
from stepwell.envs.robots.robosuite_env import list_positions
from stepwell.envs.tiles import Image

PROPRIO = ("gripper_qpos", "base_pos", "base_quat", "base_to_eef_pos", "base_to_eef_quat")


class RoboCasaOptions(RobotOptions):
    """Which task and kitchens, and what every robot environment can be asked for."""

    task: str = Field("PickPlaceCounterToCabinet", description="a RoboCasa environment")
    robot: str = Field("PandaOmron", description="a robosuite robot with a moving base")
    kitchens: Literal["all", "pretrain", "target"] = Field("all", description="RoboCasa's split of scenes")
    max_actions: int = Field(500, ge=1, le=100_000, description="actions after which an episode has failed")
    observation: Literal["state", "camera", "both"] = Field("camera", description="what the policy sees")
    camera: tuple[str, ...] = Field(
        ("robot0_agentview_left", "robot0_eye_in_hand"),
        description="of robot0_agentview_left, robot0_agentview_right, robot0_eye_in_hand",
    )


class RoboCasa(RobotEnv):
    """RoboCasa: everyday tasks in many kitchens, by name."""

    name: ClassVar[str] = "robocasa"
    extra: ClassVar[str] = "robocasa"
    package: ClassVar[str | None] = "robocasa"
    Options: ClassVar[type[Settings]] = RoboCasaOptions
    has_process: bool = False
    has_oracle: bool = False
    num_checked: ClassVar[int] = 2
    options: RoboCasaOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self._sim: Any = None
        self._seen: dict[str, npt.NDArray[Any]] = {}

    def layout(self) -> RobotEnvDescription:
        """Opens the simulator: sizes depend on task and robot."""
        if not self._seen:
            self._start_scene(0)
        arrays = {name: ArraySpec(array.shape) for name, array in self._make_vectors().items()}
        arrays |= self.options.image_specs
        name = f"{self.name}/{self.options.task}"
        return RobotEnvDescription(name, arrays, int(self._sim.action_dim), self.options.max_actions)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """The seed of kitchen, objects and places."""
        content: dict[str, JSON] = {"task": options.task, "kitchens": options.kitchens, "seed": seed}
        return Task(cls.name, content, instruction=split_task_name(options.task), seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """A kitchen built from the task's seed."""
        content: dict[str, Any] = task.content
        if (content.get("task"), content.get("kitchens")) != (self.options.task, self.options.kitchens):
            raise InputError(
                f"task {task.id} is not one of {self.options.task!r} in {self.options.kitchens!r}"
            )
        self._start_scene(content["seed"])

    def act(self, action: FloatArray) -> ActionEffect:
        """One control step of 50 milliseconds."""
        self._seen, _, _, _ = self._sim.step(action)
        return ActionEffect(bool(self._sim._check_success()))

    def arrays(self) -> Arrays:
        """Robot, objects, images."""
        shown = self._make_vectors()
        expected = self.description.arrays.get("state")
        if expected is not None and shown["state"].shape != expected.shape:
            raise EnvError(f"this kitchen's state has another size than {expected.shape}; use images")
        return shown | {camera: self.image(camera) for camera in self.options.cameras}

    def facts(self) -> dict[str, JSON]:
        """Positions in metres."""
        return list_positions(self._seen)

    def image(self, camera: str) -> Image:
        """From the observation; robosuite's images start with the bottom row."""
        if f"{camera}_image" not in self._seen:
            raise InputError(f"env.options.camera: {camera!r} is not among {', '.join(self.options.camera)}")
        return np.asarray(self._seen[f"{camera}_image"], dtype=np.uint8)[::-1]

    def close(self) -> None:
        """Close the simulator."""
        if self._sim is not None:
            self._sim.close()
        self._sim, self._seen = None, {}

    def _find_instruction(self) -> str:
        words = "" if self._sim is None else str(self._sim.get_ep_meta().get("lang", ""))
        return words or super()._find_instruction()

    def _make_vectors(self) -> Arrays:
        parts = [np.ravel(self._seen[f"robot0_{part}"]) for part in PROPRIO]
        shown: Arrays = {"proprio": np.concatenate(parts).astype(np.float32)}
        if self.options.shows_state:
            shown["state"] = np.asarray(self._seen["object-state"], dtype=np.float32)
        return shown

    def _start_scene(self, seed: int) -> None:
        if self._sim is None:
            self._sim = open_simulator(self.options)
        self._sim.rng = np.random.default_rng(seed)  # every draw of the new scene comes from it
        self._seen = self._sim.reset()


def open_simulator(options: RoboCasaOptions) -> Any:
    """A RoboCasa environment that renders the chosen cameras."""
    cameras.choose_gl_backend()  # before robosuite looks which GL there is
    env_utils = import_simulator("robocasa.utils.env_utils", env="robocasa", extra="robocasa")
    base = import_simulator("robosuite.environments.base", env="robocasa", extra="robocasa")
    if options.task not in base.REGISTERED_ENVS:
        raise ConfigError(f"env.options.task: RoboCasa has no {options.task!r}")
    return env_utils.create_env(
        env_name=options.task,
        robots=options.robot,
        camera_names=list(options.camera),
        camera_widths=options.image_size,
        camera_heights=options.image_size,
        split=options.kitchens,
        seed=0,
    )
