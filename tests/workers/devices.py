"""Devices for tests of scheduling: real protocols, made-up latencies, failures on demand, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepwell.core import (
    Request,
    Sampled,
    Sampling,
    SamplingParams,
    Task,
    TokenAction,
    TokenState,
    VersionSpan,
    WorkerError,
)
from stepwell.envs.turns import Turn
from stepwell.rollout.jobs import Job
from stepwell.workers.driver import PlannedEpisode, PlayedEpisode
from stepwell.workers.modelled import ModelledGenerator, ModelledHardware, ModelledSimulator
from stepwell.workers.shards import ActionRequest


def ask(number: int, env_batch: int = 0, turn: int = 0) -> ActionRequest:
    """A request whose number can be read back out of its answer."""
    request = Request(TokenState(np.array([number], np.int32)), SamplingParams(), id=f"r{number}")
    return ActionRequest(request, Job(Task("modelled", {"turns": 1}), f"g{number}", number), env_batch, turn)


def number_of(sample: Sampled) -> int:
    assert isinstance(sample.action, TokenAction)
    return int(sample.action.action_ids[0])


class EchoGenerator(ModelledGenerator):
    """Answers each request with its own number; keeps what it was asked together."""

    def __init__(self, number: int = 0, latency: float = 1.0, *, fails: Sequence[int] = ()) -> None:
        super().__init__(ModelledHardware(), number)
        self.latency, self.calls, self._fails = latency, [], set(fails)
        self.calls: list[tuple[float, list[int]]] = []
        self.num_underway = self.most_underway = 0

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        numbers = [int(request.state.prompt_ids[0]) for request in requests]  # type: ignore[union-attr]
        self.calls.append((asyncio.get_running_loop().time(), numbers))
        self.num_underway += 1
        self.most_underway = max(self.most_underway, self.num_underway)
        try:
            await asyncio.sleep(self.latency)
            if len(self.calls) - 1 in self._fails:
                raise WorkerError(f"{self.name} died")
        finally:
            self.num_underway -= 1
        span = VersionSpan.at(self.version)
        return [
            Sampled(TokenAction(np.array([n], np.int32)), np.zeros(1, np.float32), Sampling(), span)
            for n in numbers
        ]


class MortalSimulator(ModelledSimulator):
    """Dies at calls that a seed decides: all it hosts is lost then, and calls under way fail."""

    def __init__(self, model: ModelledHardware, number: int, chance: float) -> None:
        super().__init__(model, number)
        self._chance, self._fate = chance, np.random.default_rng([model.seed, 9, number])
        self.life, self.num_deaths = 0, 0
        self._begun: dict[tuple[int, int], int] = {}
        self.stepped: list[tuple[str, int]] = []

    async def reset(
        self, batch: int, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> Any:
        await self._live_through(super().reset(batch, places, tasks, seeds))
        self._begun.update({(batch, place): self.life for place in places})
        return [Turn() for _ in places]

    async def step(self, batch: int, places: Sequence[int], actions: Sequence[Any]) -> list[Turn]:
        life = self.life
        turns = await self._live_through(super().step(batch, places, actions))
        return [
            turn if self._begun[batch, place] == life else Turn(error=WorkerError("restarted"))
            for place, turn in zip(places, turns, strict=True)
        ]

    async def _live_through(self, call: Any) -> Any:
        life = self.life
        if self._fate.random() < self._chance:
            self.life, self.num_deaths = self.life + 1, self.num_deaths + 1
            call.close()
            raise WorkerError(f"{self.name} died")
        found = await call
        if self.life != life:
            raise WorkerError(f"{self.name} died meanwhile")
        return found


@dataclass(eq=False)
class ListFeed:
    """A fixed list of jobs; what was lost is played again."""

    jobs: list[Job]
    outcomes: list[PlayedEpisode] = field(default_factory=list)
    driver: Any = None
    whole: asyncio.Event = field(default_factory=asyncio.Event)
    num_jobs: int = 0

    def __post_init__(self) -> None:
        self.num_jobs = len(self.jobs)

    def take_next(self) -> PlannedEpisode | None:
        return PlannedEpisode(self.jobs.pop(0), SamplingParams()) if self.jobs else None

    def report(self, played: PlayedEpisode) -> None:
        self.outcomes.append(played)
        if not played.trajectory.is_trainable:
            self.jobs.append(played.job)
            self.driver.wake()
        if sum(o.trajectory.is_trainable for o in self.outcomes) == self.num_jobs:
            self.whole.set()
