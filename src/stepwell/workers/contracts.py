"""The contracts of workers: simulators and generators, one process or machine each.

    Simulator   hosts environment batches; resets and steps give turns
    Generator   has a copy of the policy; requests give samples

    Launcher    starts a worker somewhere: a process here, an actor of Ray, a process of another machine
    WorkerLink  one started worker: calls out, answers in, its end. `worker_process.py` restarts it

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stepwell.core import Request, Sampled, Task, WorkerError
from stepwell.core.frames import Frame
from stepwell.core.weight_parts import Adapter
from stepwell.envs.turns import Turn


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """The present state of a worker."""

    name: str
    pid: int | None
    memory_mb: float
    num_restarts: int
    is_alive: bool  # it can be called; one that is being built cannot
    silent_s: float  # time since its last heartbeat
    last_end: str = ""  # how its process before this one ended, with the end of its log


class Worker(Protocol):
    """The common part of simulators and generators."""

    name: str

    def read_health(self) -> WorkerHealth:
        """Its state. Cheap, never blocks."""

    async def close(self) -> None:
        """End it and free what it holds. Calling it twice is fine."""


class Simulator(Worker, Protocol):
    """Hosts `num_batches` environment batches of `batch_size` environments each."""

    num_batches: int
    batch_size: int

    async def reset(
        self, batch: int, places: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int]
    ) -> list[Turn]:
        """Start one episode per place of an environment batch."""

    async def step(self, batch: int, places: Sequence[int], actions: Sequence[Any]) -> list[Turn]:
        """One turn in each of these places: names of actions, or a robot's chunk [C, D]."""


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """What a generator says of weights that it has taken.

    `is_merged`: the fingerprint is that of whole weights, not of their parts.
    """

    fingerprint: str
    paused_s: float  # in which it could not sample
    num_bytes: int
    is_merged: bool = False


class WeightVersion(Protocol):
    """The weights of one version as parts that do not change (`weight_snapshots.py`)."""

    version: int
    adapters: dict[str, Adapter]
    marks: dict[str, str]

    def list_buckets(self, names: Iterable[str]) -> Sequence[Any]:
        """The bytes of these parts, in buckets of a set size."""

    def merge_weights(self) -> Mapping[str, Any]:
        """Whole weights under plain names."""


class Generator(Worker, Protocol):
    """Samples with its own copy of the policy.

    Those with a real engine also have `sync_weights(WeightVersion) -> SyncAnswer`, which takes weights while
    they sample, and `check_weights(frequencies)`, which raises `WeightsError` if the engine no longer holds
    what it has taken, or rotates by other frequencies than the trainer's.
    """

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        """One sample per request, in order."""

    async def load_weights(self, version: int, weights: Mapping[str, Any]) -> str:
        """Load these weights (name -> tensor or array); the fingerprint that it has now."""

    async def forget(self) -> None:
        """Drop caches of earlier conversations."""


class WorkerLink(Protocol):
    """One started worker as its parent sees it. Frames are the same wherever it runs.

    Every call ends: with its answer, or with the `WorkerError` of `end`.
    """

    number: int  # of this start: 1, 2, …

    @property
    def is_over(self) -> bool:
        """Whether it has ended or is being ended."""

    async def call(self, frame: Frame) -> Frame:
        """Send a call and wait for its answer. An answer that is an error is raised."""

    def find_trouble(self, hang_s: float) -> str | None:
        """Why it should be ended ("" if it is dead already); None while all is well."""

    def read_state(self) -> tuple[int | None, float, float]:
        """Its process id, its memory in MB, and the time since its last sign of life."""

    def was_ended_by_others(self) -> bool:
        """Whether a person, a system short of memory or the loss of a machine ended it."""

    def give_up(self, why: str) -> None:
        """Give it up for this reason ("": it has ended) and report it to `on_lost`."""

    async def end(self, why: str = "", *, grace_s: float = 0.0) -> WorkerError:
        """End it, free what it holds and fail the pending calls; the error says how it ended."""


class Launcher(Protocol):
    """Starts the workers of one kind of place."""

    async def launch_worker(self, name: str, number: int, on_lost: Callable[[Any], None]) -> WorkerLink:
        """Start a worker that waits for its first frame. `on_lost` is called once, with the link.

        Raises `WorkerError` if it cannot be started now.
        """
