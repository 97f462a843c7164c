"""Environments for tests of workers: one that does whatever it is told, and a small robot's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, ClassVar

import numpy as np

from stepwell.config.base import Settings
from stepwell.core import JSON, ActionSpace, ArraySpec, EnvDescription, Observation, RobotEnvDescription, Task
from stepwell.envs.base import Effect, Env
from stepwell.envs.robots.base import ActionEffect, RobotEnv, RobotOptions

ODD = "tests.workers.odd_envs:Odd"
POINT = "tests.workers.odd_envs:Point"


class OddOptions(Settings):
    """How it begins."""

    fails_to_build: bool = False
    dies_when_built: bool = False


class Odd(Env):
    """Counts its actions; some of them take down what they run in."""

    name: ClassVar[str] = "odd"
    Options: ClassVar[type[Settings]] = OddOptions

    def __init__(self, options: Settings | None = None) -> None:
        super().__init__(options)
        if self.options.fails_to_build:
            raise RuntimeError("no licence for this simulator")
        if self.options.dies_when_built:
            os._exit(9)
        self.count = 0

    @property
    def description(self) -> EnvDescription:
        names = (
            "go",
            "raise",
            "sleep",
            "hang",
            "exit",
            "vanish",
            "linger",
            "crash",
            "fork",
            "odd info",
            "pid",
        )
        return EnvDescription(self.name, "Do as you are told.", ActionSpace(names, 3), 10_000)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"seed": seed}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        self.count = seed

    def act(self, action: str) -> Effect:
        self.count += 1
        if action == "raise":
            raise RuntimeError("the ice broke")
        if action == "sleep":
            time.sleep(0.2)
        if action == "hang":
            time.sleep(1000)
        if action == "exit":
            sys.exit(3)
        if action == "vanish":
            print("the simulator says goodbye", file=sys.stderr, flush=True)
            os._exit(7)
        if action == "linger":  # as on a loaded machine: the socket is closed long before the process ends
            os.close(int(sys.argv[1]))
            time.sleep(0.8)
            os._exit(7)
        if action == "crash":
            os.abort()
        if action == "fork":
            self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        return Effect(reward=0.5)

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(actions)
        if "odd info" in actions:
            info["socket"] = object()  # type: ignore[assignment]
        if "fork" in actions:
            info["child"] = self.child.pid
        return observation, reward, terminated, truncated, info

    def observe(self) -> Observation:
        return Observation(f"count {self.count}")

    def oracle(self) -> list[str]:
        return []


class PointOptions(RobotOptions):
    """Of the point."""

    camera: tuple[str, ...] = ("top",)


class Point(RobotEnv):
    """A point on a plane that must come near the origin."""

    name: ClassVar[str] = "point"
    extra: ClassVar[str] = ""
    Options: ClassVar[type[Settings]] = PointOptions

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        place = np.random.default_rng(seed).uniform(-1, 1, 2).round(6).tolist()
        return Task(cls.name, {"place": place}, "go to the middle", seed)

    def layout(self) -> RobotEnvDescription:
        arrays = {"proprio": ArraySpec((2,)), "state": ArraySpec((3,), "float64")}
        if self.options.cameras:
            arrays["top"] = ArraySpec((self.options.image_size, self.options.image_size, 3), "uint8")
        return RobotEnvDescription(self.name, arrays, 2, self.options.max_actions)

    def begin(self, task: Task, seed: int) -> None:
        self.place = np.array(task.content["place"])

    def act(self, action: Any) -> ActionEffect:
        self.place = self.place + 0.1 * action
        distance = float(np.linalg.norm(self.place))
        return ActionEffect(distance < 0.1, -distance)

    def arrays(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "proprio": self.place.astype(np.float32),
            "state": np.array([*self.place, self._num_actions]),
        }
        for camera in self.options.cameras:
            found[camera] = self.image(camera)
        return found

    def facts(self) -> dict[str, JSON]:
        return {"place": [float(value) for value in self.place]}

    def image(self, camera: str) -> Any:
        size = self.options.image_size
        pixels = np.zeros((size, size, 3), np.uint8)
        pixels[tuple(((self.place + 2) / 4 * size).astype(int) % size)] = 255
        return pixels
