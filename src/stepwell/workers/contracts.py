"""The contracts of the resource groups: who simulates and who generates, one process or machine each.

    Simulator   hosts environment batches; a reset or a step of some of their worlds gives turns
    Generator   has a copy of the policy; a list of requests gives samples

Whoever drives an asynchronous rollout speaks to these and does not know whether a worker is a
process that shares memory, a machine behind HTTP, or a modelled device with made-up latencies.

Invariants
* Calls to one environment batch never overlap; calls to different batches may.
* A worker that died or hung raises `WorkerError` from every call under way and is restarted;
  afterwards its batches are empty: what was played in them is lost and must be begun again.
* A generator goes on with requests under way while new weights arrive where its engine can; the
  samples' `policy_version` spans say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.core import Request, Sampled, Task
from stepwell.envs.turns import Turn


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """What is known of a worker now."""

    name: str
    pid: int | None
    memory_mb: float
    num_restarts: int
    is_alive: bool
    silent_s: float  # since its last heartbeat


class Worker(Protocol):
    """What simulators and generators share."""

    name: str

    def read_health(self) -> WorkerHealth:
        """How it is; cheap, never blocks."""
        ...

    async def close(self) -> None:
        """End it and free all it holds; calling it twice is fine."""
        ...


class Simulator(Worker, Protocol):
    """Hosts `num_batches` environment batches of `batch_size` worlds each."""

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
        """Take these weights (name -> tensor or array); gives the fingerprint of what it now has."""
        ...

    async def forget(self) -> None:
        """Drop caches of earlier conversations."""
        ...
