"""Simulators and generators as callers see them, wherever their worker runs.

`SimulatorClient` and `GeneratorClient` turn the protocols of `contracts.py` into frames. A `WorkerChannel`
carries the frames: to a process that shares memory (`worker_process.py`), or to another machine (`http.py`).

Invariants
* Wrong batches or places of a caller raise `InputError` before anything is sent.
* A place whose episode began before a restart of the worker is lost: its turn has a `WorkerError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stepwell.core import Request, Sampled, Task, WorkerError
from stepwell.core.arrays import AnyArray
from stepwell.core.frames import Frame
from stepwell.envs.codecs import pack_actions, pack_requests, pack_tasks, unpack_samples, unpack_turns
from stepwell.envs.turns import Turn
from stepwell.workers.contracts import WorkerHealth
from stepwell.workers.hosts import check_places
from stepwell.workers.weight_bytes import pack_weights


class WorkerChannel(Protocol):
    """Carries calls to one worker. `start` in the header of an answer is the number of its process."""

    name: str

    async def start(self) -> None: ...

    async def call(
        self,
        op: str,
        header: dict[str, Any],
        arrays: Sequence[AnyArray] = (),
        *,
        timeout_s: float | None = None,
    ) -> Frame: ...

    def read_health(self) -> WorkerHealth: ...

    async def close(self) -> None: ...


class _Client:
    """The common part of both clients."""

    def __init__(self, channel: WorkerChannel, timeout_s: float | None) -> None:
        self.name = channel.name
        self._channel, self._timeout_s = channel, timeout_s

    async def start(self) -> None:
        """Start the worker and wait until it is ready. Otherwise the first call does."""
        await self._channel.start()

    def read_health(self) -> WorkerHealth:
        """The state of the worker. Cheap, never blocks."""
        return self._channel.read_health()

    async def close(self) -> None:
        """End the worker and free what it holds. Calling it twice is fine."""
        await self._channel.close()


class SimulatorClient(_Client):
    """A `Simulator`. A worker whose call takes longer than `timeout_s` is restarted."""

    def __init__(
        self, channel: WorkerChannel, num_batches: int, batch_size: int, *, timeout_s: float | None = None
    ) -> None:
        super().__init__(channel, timeout_s)
        self.num_batches, self.batch_size = num_batches, batch_size
        self._begun: dict[tuple[int, int], int] = {}  # place -> process number of the worker that plays it

    async def reset(
        self, batch: int, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> list[Turn]:
        """Start one episode per place of an environment batch."""
        places = list(places)
        check_places(batch, places, len(tasks), self.num_batches, self.batch_size)
        header = {"batch": batch, "places": places, "seeds": list(seeds), **pack_tasks(tasks)}
        answer = await self._channel.call("reset", header, timeout_s=self._timeout_s)
        self._begun.update(((batch, place), answer.header["start"]) for place in places)
        return unpack_turns(answer.header, answer.arrays)

    async def step(self, batch: int, places: Sequence[int], actions: Sequence[Any]) -> list[Turn]:
        """One turn in each of these places: names of actions, or a robot's chunk [C, D]."""
        places = list(places)
        check_places(batch, places, len(actions), self.num_batches, self.batch_size)
        packed, arrays = pack_actions(actions)
        header = {"batch": batch, "places": places, **packed}
        answer = await self._channel.call("step", header, arrays, timeout_s=self._timeout_s)
        turns, start = unpack_turns(answer.header, answer.arrays), answer.header["start"]
        for number, place in enumerate(places):
            if self._begun.get((batch, place), start) != start:
                problem = f"worker {self.name} was restarted: the episode in place {place} is lost"
                turns[number] = Turn(error=WorkerError(problem))
        return turns


class GeneratorClient(_Client):
    """A `Generator`."""

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order."""
        header, arrays = pack_requests(requests)
        answer = await self._channel.call("generate", header, arrays, timeout_s=self._timeout_s)
        return unpack_samples(answer.header, answer.arrays)

    async def load_weights(self, version: int, weights: Mapping[str, Any]) -> str:
        """Load these weights (name -> tensor or array); the fingerprint that it has now."""
        header, arrays = await asyncio.to_thread(pack_weights, weights)  # tensors may come from a GPU
        answer = await self._channel.call("load_weights", {"version": version, **header}, arrays)
        return str(answer.header["fingerprint"])

    async def check_weights(self, frequencies: Mapping[str, Any]) -> None:
        """Refuse if it no longer holds the weights it has taken, or rotates by other frequencies."""
        await self._channel.call("check_weights", *pack_weights(frequencies))

    async def forget(self) -> None:
        """Drop caches of earlier conversations."""
        await self._channel.call("forget", {}, timeout_s=self._timeout_s)
