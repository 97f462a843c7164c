"""The environment `fetch`: Gymnasium-Robotics' Fetch arm, four tasks chosen by name.

A task is where object and goal are, as offsets from where the gripper starts, drawn from the ranges
that Gymnasium-Robotics uses; goals that are reached at the start are drawn again. `proprio` [10] is
gripper position, fingers and their velocities; `state` is the object (15 numbers: position, relative
position, rotation, velocities; none in `reach`) and the goal (3). An action moves the gripper by up to
five centimetres per axis and sets the fingers. Dense reward: minus the distance to the goal.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, InputError, RobotEnvDescription, Task
from stepwell.envs.robots import cameras
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotEnv, RobotOptions, round_numbers
from stepwell.envs.robots.fetch.expert import EXPERTS
from stepwell.envs.robots.fetch.simulator import open_simulator
from stepwell.envs.tiles import Image

ACTION_DIM, DECIMALS = 4, 5
MIN_APART = 0.1  # of the goal from what must be brought there; the goal's radius is 0.05
MIN_FROM_HAND = 0.1  # of the object from the gripper, as Gymnasium-Robotics has it
HIGHEST = 0.45


class TaskRanges(NamedTuple):
    """Where things may be, around the gripper's start."""

    instruction: str
    goal_range: float
    object_range: float | None = None
    goal_offset: tuple[float, float] = (0.0, 0.0)
    is_in_the_air: bool = False


TASKS = {
    "reach": TaskRanges("move the gripper to the target", 0.15),
    "push": TaskRanges("push the block to the target", 0.15, 0.15),
    "slide": TaskRanges("slide the puck to the target", 0.3, 0.1, (0.4, 0.0)),
    "pick_and_place": TaskRanges(
        "pick up the block and bring it to the target", 0.15, 0.15, (0.0, 0.0), True
    ),
}


class FetchOptions(RobotOptions):
    """Which task, and what every robot environment can be asked for."""

    task: Literal["reach", "push", "slide", "pick_and_place"] = Field("reach", description="the task")
    max_actions: int = Field(50, ge=1, le=100_000, description="actions after which an episode has failed")
    camera: tuple[str, ...] = Field(
        ("external_camera_0",),
        description="of external_camera_0, head_camera_rgb, gripper_camera_rgb, lidar",
    )


class Fetch(RobotEnv):
    """Gymnasium-Robotics: a Fetch arm that reaches, pushes, slides, or picks and places."""

    name: ClassVar[str] = "fetch"
    extra: ClassVar[str] = "fetch"
    package: ClassVar[str | None] = "gymnasium_robotics"
    Options: ClassVar[type[Settings]] = FetchOptions
    options: FetchOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self.has_oracle = self.options.task in EXPERTS
        self._sim: Any = None
        self._seen: dict[str, npt.NDArray[np.float64]] = {}
        self._has_object = TASKS[self.options.task].object_range is not None

    def layout(self) -> RobotEnvDescription:
        """`state` is shorter in `reach`, which has no object."""
        arrays = {"proprio": ArraySpec((10,))}
        if self.options.shows_state:
            arrays["state"] = ArraySpec((18 if self._has_object else 3,))
        arrays |= self.options.image_specs
        return RobotEnvDescription(
            f"{self.name}/{self.options.task}", arrays, ACTION_DIM, self.options.max_actions
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """Object and goal drawn evenly from their ranges."""
        draw, rng = TASKS[options.task], np.random.default_rng(seed)
        while True:
            place = _draw_place(draw, rng)
            goal = _draw_goal(draw, rng)
            start = np.zeros(3) if place is None else np.append(place, 0.0)
            if np.linalg.norm(goal - start) >= MIN_APART:
                break
        content: dict[str, JSON] = {"task": options.task, "goal": round_numbers(goal, DECIMALS)}
        if place is not None:
            content["object"] = round_numbers(place, DECIMALS)
        return Task(cls.name, content, instruction=draw.instruction, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Object and goal where the task has them."""
        content: dict[str, Any] = task.content
        if content.get("task") != self.options.task or ("object" in content) != self._has_object:
            raise InputError(f"task {task.id} is {content.get('task')!r}, not {self.options.task!r}")
        if self._sim is None:
            self._sim = open_simulator(self.options.task)
        place = np.asarray(content["object"], dtype=np.float64) if self._has_object else None
        self._seen = self._sim.restart_at(place, np.asarray(content["goal"], dtype=np.float64))

    def act(self, action: FloatArray) -> ActionEffect:
        """One step of 40 milliseconds."""
        self._seen, reward, _, _, info = self._sim.step(action)
        return ActionEffect(bool(info["is_success"]), float(reward))

    def arrays(self) -> Arrays:
        """Gripper, object and goal, images."""
        seen = self._seen["observation"]
        robot = np.r_[seen[:3], seen[9:11], seen[-5:]] if self._has_object else seen
        shown: Arrays = {"proprio": robot.astype(np.float32)}
        if self.options.shows_state:
            thing = np.r_[seen[3:9], seen[11:20]] if self._has_object else np.empty(0)
            shown["state"] = np.r_[thing, self._seen["desired_goal"]].astype(np.float32)
        return shown | {camera: self.image(camera) for camera in self.options.cameras}

    def expert(self) -> npt.NDArray[Any]:
        """`slide` has none."""
        if not self.has_oracle:
            return super().expert()
        seen = self._seen["observation"]
        fingers = float(seen[9:11].sum() if self._has_object else 0.0)
        goal, thing = self._seen["desired_goal"], self._seen["achieved_goal"]
        return EXPERTS[self.options.task](seen[:3], fingers, thing, goal)

    def facts(self) -> dict[str, JSON]:
        """Positions in metres."""
        facts: dict[str, JSON] = {"gripper": round_numbers(self._seen["observation"][:3])}
        if self._has_object:
            facts["object"] = round_numbers(self._seen["achieved_goal"])
        return facts | {"goal": round_numbers(self._seen["desired_goal"])}

    def image(self, camera: str) -> Image:
        """Rendered off screen, the goal as a ball."""
        sim = self._sim
        return cameras.render_image(sim.fullpath, sim.model, sim.data, camera, self.options.image_size)

    def close(self) -> None:
        """Forget the simulator."""
        self._sim = None


def _draw_place(draw: TaskRanges, rng: np.random.Generator) -> npt.NDArray[np.float64] | None:
    if draw.object_range is None:
        return None
    while True:
        place = np.round(rng.uniform(-draw.object_range, draw.object_range, 2), DECIMALS)
        if np.linalg.norm(place) >= MIN_FROM_HAND:
            return place


def _draw_goal(draw: TaskRanges, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    goal = rng.uniform(-draw.goal_range, draw.goal_range, 3)
    if draw.object_range is not None:  # the height is above the table
        goal[:2] += draw.goal_offset
        goal[2] = rng.uniform(0.0, HIGHEST) if draw.is_in_the_air and rng.uniform() < 0.5 else 0.0
    return np.round(goal, DECIMALS)
