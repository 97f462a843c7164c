"""The environment `metaworld`: a Sawyer arm and one of fifty tabletop tasks, chosen by name.

A task is Meta-World's random vector (where objects and goal are), so that content decides the
episode. The observation of 39 numbers that Meta-World shows is split: `proprio` [8] is hand (3) and
gripper opening now and one action ago, `state` [31] is the objects (14) now and one action ago, and
the goal (3). An action moves the hand by up to one centimetre per axis and closes (+) or opens (-)
the gripper. The dense reward is Meta-World's (0 to 10 per action); success is what it says it is.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, ConfigError, InputError, RobotEnvDescription, Task
from stepwell.envs.robots import cameras
from stepwell.envs.robots.base import ActionEffect, Arrays, FloatArray, RobotEnv, RobotOptions, round_numbers
from stepwell.envs.robots.metaworld.simulator import (
    SharedModel,
    find_vector_bounds,
    make_expert,
    open_simulator,
)
from stepwell.envs.robots.metaworld.text import (
    EXPERT_SHARE,
    INSTRUCTIONS,
    MIN_APART,
    SWEEP_GOAL,
    VERSION,
    strip_version,
)
from stepwell.envs.tiles import Image

ACTION_DIM, FRAME, HAND = 4, 18, 4  # the observation is two frames and the goal; a frame starts with the hand
DECIMALS = 5


class MetaWorldOptions(RobotOptions):
    """Which task, and what every robot environment can be asked for."""

    task: str = Field("reach", description="a Meta-World task, as 'reach' or 'reach-v3'")
    camera: tuple[str, ...] = Field(
        ("corner2",),
        description="of topview, corner, corner2, corner3, corner4, behindGripper, gripperPOV",
    )

    @field_validator("task")
    @classmethod
    def _check_task(cls, value: str) -> str:
        try:
            return strip_version(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


class MetaWorld(RobotEnv):
    """Meta-World: fifty tabletop tasks of a Sawyer arm, by name."""

    name: ClassVar[str] = "metaworld"
    extra: ClassVar[str] = "metaworld"
    package: ClassVar[str | None] = "metaworld"
    Options: ClassVar[type[Settings]] = MetaWorldOptions
    options: MetaWorldOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        self.oracle_share = EXPERT_SHARE.get(self.options.task, self.oracle_share)
        self._sim: Any = None
        self._expert: Any = None
        self._shared = SharedModel()
        self._seen: npt.NDArray[np.float64] = np.zeros(2 * FRAME + 3)
        self._is_stale = False

    def share(self, other: RobotEnv) -> None:
        """Use the model of the other environment of this task."""
        assert isinstance(other, MetaWorld) and other.options.task == self.options.task and self._sim is None
        self._shared = other._shared

    def layout(self) -> RobotEnvDescription:
        """The same arrays for every task."""
        arrays = {"proprio": ArraySpec((2 * HAND,))}
        if self.options.shows_state:
            arrays["state"] = ArraySpec((2 * (FRAME - HAND) + 3,))
        arrays |= self.options.image_specs
        return RobotEnvDescription(
            f"{self.name}/{self.options.task}", arrays, ACTION_DIM, self.options.max_actions
        )

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        """Object and goal drawn as Meta-World draws them, rounded to hundredths of a millimetre."""
        low, high = find_vector_bounds(options.task + VERSION)
        rng = np.random.default_rng(seed)
        vector = np.round(rng.uniform(low, high), DECIMALS)
        while not is_allowed(options.task, vector):
            vector = np.round(rng.uniform(low, high), DECIMALS)
        content: dict[str, JSON] = {"task": options.task, "vector": round_numbers(vector, DECIMALS)}
        return Task(cls.name, content, instruction=INSTRUCTIONS[options.task], seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        """Objects and goal where the task's vector puts them, the hand at its start."""
        content: dict[str, Any] = task.content
        if content.get("task") != self.options.task:
            raise InputError(
                f"task {task.id} is {content.get('task')!r}, env.options.task is {self.options.task!r}"
            )
        vector = np.asarray(content["vector"], dtype=np.float64)
        if self._sim is None:
            self._sim = open_simulator(self.options.task + VERSION, self._shared)
        if vector.shape != self._sim._random_reset_space.shape:
            raise InputError(f"content.vector of task {task.id} has {vector.size} numbers")
        self._sim.take_model()
        self._seen = self._sim.restart_at(vector)
        self._expert = None
        self._is_stale = True

    def act(self, action: FloatArray) -> ActionEffect:
        """One step of Meta-World (five of the simulator)."""
        self._sim.take_model()
        self._seen, reward, _, _, info = self._sim.step(action)
        self._is_stale = False
        return ActionEffect(bool(info["success"]), float(reward))

    def arrays(self) -> Arrays:
        """Hand, objects and goal, images."""
        now, before, goal = self._seen[:FRAME], self._seen[FRAME : 2 * FRAME], self._seen[2 * FRAME :]
        shown: Arrays = {"proprio": np.concatenate([now[:HAND], before[:HAND]]).astype(np.float32)}
        if self.options.shows_state:
            shown["state"] = np.concatenate([now[HAND:], before[HAND:], goal]).astype(np.float32)
        return shown | {camera: self.image(camera) for camera in self.options.cameras}

    def expert(self) -> npt.NDArray[Any]:
        """Meta-World's scripted policy, a new one in each episode."""
        if self._expert is None:
            self._expert = make_expert(self.options.task + VERSION)
        return np.asarray(self._expert.get_action(self._seen))

    def facts(self) -> dict[str, JSON]:
        """Positions in metres."""
        seen = self._seen
        facts: dict[str, JSON] = {
            "hand": round_numbers(seen[:3]),
            "gripper_opening": round(float(seen[3]), 4),
            "object": round_numbers(seen[4:7]),
        }
        if seen[11:18].any():
            facts["second_object"] = round_numbers(seen[11:14])
        return facts | {"goal": round_numbers(seen[2 * FRAME :])}

    def image(self, camera: str) -> Image:
        """Rendered off screen; the corner cameras hang upside down in Meta-World and are turned upright."""
        self._sim.take_model()
        model, data = self._sim.model, self._sim.data
        if self._is_stale:  # a reset leaves bodies and sites where they were drawn before
            cameras.update_positions(model, data)
            self._is_stale = False
        seen = cameras.render_image(self._sim.fullpath, model, data, camera, self.options.image_size)
        return seen[::-1, ::-1] if camera.startswith("corner") else seen

    def close(self) -> None:
        """Forget the simulator."""
        self._sim = None


def is_allowed(task: str, vector: npt.NDArray[np.float64]) -> bool:
    """Whether Meta-World's own sampling would keep this vector."""
    if task not in MIN_APART:
        return True
    other = np.asarray(SWEEP_GOAL) if task == "sweep-into" else vector[-3:-1]
    return float(np.linalg.norm(vector[:2] - other)) >= MIN_APART[task]
