"""A robot and a policy that only wait: what is left of a run is what its workers and transports cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from stepwell.config.base import Settings
from stepwell.core import (
    JSON,
    ArrayAction,
    ArraySpec,
    ArrayState,
    Request,
    RobotEnvDescription,
    Sampled,
    Sampling,
    Task,
    VersionSpan,
)
from stepwell.engines.weights import fingerprint_of
from stepwell.envs.robots.base import ActionEffect, RobotEnv, RobotOptions

ENV, ENGINE = "waiting_robot:WaitingRobot", "waiting_robot:build_waiting_engine"


class WaitingOptions(RobotOptions):
    """How long an action takes, and how large an observation is."""

    camera: tuple[str, ...] = ("top",)
    step_s: float = 0.05
    num_floats: int = 32


class WaitingRobot(RobotEnv):
    """Its episodes end after `max_actions`, whatever it does."""

    name: ClassVar[str] = "waiting"
    extra: ClassVar[str] = ""
    Options: ClassVar[type[Settings]] = WaitingOptions

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"seed": seed}, "wait", seed)

    def layout(self) -> RobotEnvDescription:
        arrays = {"proprio": ArraySpec((2,)), "state": ArraySpec((self.options.num_floats,))}
        return RobotEnvDescription(self.name, arrays, 2, self.options.max_actions)

    def begin(self, task: Task, seed: int) -> None:
        self.values = np.full(self.options.num_floats, seed % 100, np.float32)

    def act(self, action: Any) -> ActionEffect:
        if self.options.step_s:
            time.sleep(self.options.step_s)
        return ActionEffect(False, 0.0)

    def arrays(self) -> dict[str, Any]:
        return {"proprio": np.zeros(2, np.float32), "state": self.values}

    def facts(self) -> dict[str, JSON]:
        return {}

    def image(self, camera: str) -> Any:
        return np.zeros((self.options.image_size, self.options.image_size, 3), np.uint8)


def build_waiting_engine(settings: Mapping[str, Any]) -> WaitingEngine:
    """The engine of a generator."""
    return WaitingEngine(float(settings["call_s"]))


class WaitingEngine:
    """Answers a batch after `call_s` with an action of two numbers for each request."""

    def __init__(self, call_s: float) -> None:
        self._call_s, self._version = call_s, 0
        self._weights: dict[str, Any] = {}

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        await asyncio.sleep(self._call_s)
        chunk = np.zeros((1, 2), np.float32)
        span = VersionSpan(self._version, self._version)
        assert all(isinstance(request.state, ArrayState) for request in requests)
        return [
            Sampled(ArrayAction(chunk, 2, {}), np.zeros(2, np.float32), Sampling(seed=r.params.seed), span, 0)
            for r in requests
        ]

    def load_weights(self, version: int, source: Mapping[str, Any]) -> None:
        self._version, self._weights = version, {name: value.clone() for name, value in source.items()}

    def fingerprint(self) -> str:
        return fingerprint_of(self._weights)

    def forget(self) -> None:
        """Nothing is cached."""
