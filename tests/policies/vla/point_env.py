"""The smallest robot's environment: a point in the plane that must come near a goal. numpy only."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from stepwell.config.base import Settings
from stepwell.core import JSON, ArraySpec, RobotEnvDescription, Task
from stepwell.envs.robots.base import ActionEffect, RobotEnv, RobotOptions, round_numbers

NAME = "tests.policies.vla.point_env:PointEnv"
STRIDE = 0.15
INSTRUCTIONS = ("go to the goal", "reach the mark")


class PointOptions(RobotOptions):
    """Its settings."""

    camera: tuple[str, ...] = ("top",)
    max_actions: int = Field(24, ge=1)
    image_size: int = Field(24, ge=8)
    radius: float = Field(0.12, gt=0)


class PointEnv(RobotEnv):
    """Positions in [-1, 1] squared; an action moves the point by at most `STRIDE` along each axis."""

    name: ClassVar[str] = NAME
    extra: ClassVar[str] = "none"
    Options: ClassVar[type[Settings]] = PointOptions

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        rng = np.random.default_rng(seed)
        while True:
            point, goal = rng.uniform(-0.9, 0.9, (2, 2)).round(3)
            if np.linalg.norm(point - goal) > 0.5:
                break
        content: dict[str, JSON] = {"point": point.tolist(), "goal": goal.tolist()}
        return Task(NAME, content, INSTRUCTIONS[seed % 2], seed)

    def layout(self) -> RobotEnvDescription:
        arrays = {"proprio": ArraySpec((2,))}
        if self.options.shows_state:
            arrays["state"] = ArraySpec((2,))
        size = self.options.image_size
        arrays |= {camera: ArraySpec((size, size, 3), "uint8") for camera in self.options.cameras}
        return RobotEnvDescription(NAME, arrays, action_dim=2, max_actions=self.options.max_actions)

    def begin(self, task: Task, seed: int) -> None:
        self.point = np.array(task.content["point"], np.float64)
        self.goal = np.array(task.content["goal"], np.float64)

    def act(self, action: npt.NDArray[np.float32]) -> ActionEffect:
        before = np.linalg.norm(self.goal - self.point)
        self.point = np.clip(self.point + STRIDE * action, -1.0, 1.0)
        after = np.linalg.norm(self.goal - self.point)
        return ActionEffect(bool(after < self.options.radius), float(before - after))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        shown: dict[str, npt.NDArray[Any]] = {"proprio": self.point.astype(np.float32)}
        if self.options.shows_state:
            shown["state"] = self.goal.astype(np.float32)
        return shown | {camera: self.image(camera) for camera in self.options.cameras}

    def facts(self) -> dict[str, JSON]:
        return {"point": round_numbers(self.point), "goal": round_numbers(self.goal)}

    def image(self, camera: str) -> npt.NDArray[np.uint8]:
        size = self.options.image_size
        image = np.zeros((size, size, 3), np.uint8)
        for channel, place in enumerate((self.point, self.goal)):
            row, column = ((place + 1.0) / 2.0 * (size - 3)).astype(int)
            image[row : row + 3, column : column + 3, channel] = 255
        return image

    def expert(self) -> npt.NDArray[np.float64]:
        return (self.goal - self.point) / STRIDE
