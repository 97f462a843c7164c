"""Workers whose time is waiting: an environment and an engine that sleep, for `planner_reality.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from stepwell.config.base import Settings
from stepwell.core import (
    ActionSpace,
    EnvDescription,
    Observation,
    Request,
    Sampled,
    Sampling,
    Task,
    TokenAction,
    VersionSpan,
)
from stepwell.envs.base import Effect, Env


class WaitingOptions(Settings):
    """How long its calls take, and its episodes."""

    step_s: float = 0.004
    spread: float = 0.0
    reset_s: float = 0.0
    turns: int = 6


class WaitingEnv(Env):
    """Sleeps in every step, log-normally if `spread` is given."""

    name: ClassVar[str] = "waiting"
    Options: ClassVar[type[Settings]] = WaitingOptions

    @property
    def description(self) -> EnvDescription:
        return EnvDescription(self.name, "Wait.", ActionSpace(("go",), 1), 10_000)

    @classmethod
    def make_task(cls, options: Any, seed: int) -> Task:
        return Task(cls.name, {"seed": seed}, seed=seed)

    def begin(self, task: Task, seed: int) -> None:
        self._left = self.options.turns
        self._rng = np.random.default_rng(seed)
        time.sleep(self.options.reset_s)

    def act(self, action: str) -> Effect:
        spread = self.options.spread
        time.sleep(self.options.step_s * float(np.exp(spread * self._rng.standard_normal() - spread**2 / 2)))
        self._left -= 1
        return Effect(terminated=self._left == 0)

    def observe(self) -> Observation:
        return Observation("wait")

    def oracle(self) -> list[str]:
        return ["go"]


class WaitingEngine:
    """Answers one call at a time, after a fixed time and a time per request."""

    def __init__(self, fixed_s: float, each_s: float) -> None:
        self._fixed_s, self._each_s, self._turn, self.version = fixed_s, each_s, asyncio.Lock(), 0

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        first = self.version
        async with self._turn:
            await asyncio.sleep(self._fixed_s + self._each_s * len(requests))
        span, nothing = VersionSpan(first, self.version), np.zeros(1, np.float32)
        action = TokenAction(np.zeros(1, np.int32))
        return [Sampled(action, nothing, Sampling(), span) for _ in requests]

    def load_weights(self, version: int, source: Mapping[str, Any]) -> None:
        self.version = version

    def fingerprint(self) -> str:
        return str(self.version)

    def forget(self) -> None:
        """There is no cache."""


def build_waiting_engine(settings: Mapping[str, Any]) -> WaitingEngine:
    """The factory of a generator process."""
    return WaitingEngine(float(settings["fixed_s"]), float(settings["each_s"]))
