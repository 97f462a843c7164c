"""The contracts of workers: simulators and generators, one process or machine each.

    Simulator   hosts environment batches; resets and steps give turns
    Generator   has a copy of the policy; requests give samples

The driver of an asynchronous rollout does not know whether a worker is a process that shares memory, a
machine behind HTTP, or a modelled device with invented latencies.

Invariants
* Calls to one environment batch never overlap. Calls to different batches may.
* A worker that died or hung raises `WorkerError` from every pending call and is restarted. Its batches are
  empty then: the episodes in them are lost and must begin again.
* A generator continues pending requests while new weights arrive, if its engine can. The `policy_version` of
  the samples spans both versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.core import Request, Sampled, Task
from stepwell.envs.turns import Turn


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The present state of a worker."""

    name: str
    pid: int | None
    memory_mb: float
    num_restarts: int
    is_alive: bool
    silent_s: float  # time since its last heartbeat


class Worker(Protocol):
    """The common part of simulators and generators."""

    name: str

    def read_health(self) -> WorkerHealth:
        """Its state. Cheap, never blocks."""
        ...

    async def close(self) -> None:
        """End it and free what it holds. Calling it twice is fine."""
        ...


class Simulator(Worker, Protocol):
    """Hosts `num_batches` environment batches of `batch_size` environments each."""

    num_batches: int
    batch_size: int

    async def reset(
        self, batch: int, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> list[Turn]:
        """Start one episode per place of an environment batch."""
        ...

    async def step(self, batch: int, places: Sequence[int], actions: Sequence[Any]) -> list[Turn]:
        """One turn in each of these places: names of actions, or a robot's chunk [C, D]."""
        ...


class Generator(Worker, Protocol):
    """Samples with its own copy of the policy."""

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order."""
        ...

    async def load_weights(self, version: int, weights: Mapping[str, Any]) -> str:
        """Load these weights (name -> tensor or array); the fingerprint that it has now."""
        ...

    async def forget(self) -> None:
        """Drop caches of earlier conversations."""
        ...
