"""What a modelled run takes: the latencies of its devices, and the settings of its queue.

Latencies: `simulator`, `generator` and `trainer` are the mean times in which all workers of that kind
together handle one turn of all `num_envs` environments. Draws are log-normal with that mean.
* A simulator steps its environments one after the other (one process, one core): one draw per environment.
* A generator answers a batch in one call: one draw per call. The share `generator_fixed` does not depend on
  the size of the batch; the rest grows with it.
* The trainer learns in microbatches of `num_envs` steps, one draw each.
Every kind of worker has its own hardware here, and resets, requests between machines and the way of weights
take no time. `planned_hardware.py` has measured times instead, shared devices, and all of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.workers.shared_devices import SharedDevices


@dataclass(frozen=True, slots=True)
class ModelledHardware:
    """Devices and settings of a modelled run. The defaults are those of the benchmark."""

    simulator: float = 22.0
    generator: float = 9.0
    trainer: float = 15.0
    sigma: float = 0.5
    num_envs: int = 32
    num_simulators: int = 4
    env_batches: int = 4
    num_generators: int = 1
    generator_fixed: float = 0.25
    turns: tuple[int, int] = (10, 10)  # minimum and maximum of an episode, drawn uniformly
    global_batch: int = 32
    rollout_epochs: int = 1
    max_staleness: int = 2
    sync_interval: int = 1
    max_batch: int = 32
    max_wait: float = 0.0
    shard: str = "none"
    seed: int = 0
    group_size: int = 1
    max_inflight: int = 1  # calls under way in one generator
    weight_sync: str = "overlapped"  # or blocking: the trainer waits until every generator has its weights

    @property
    def batch_size(self) -> int:
        """Environments of one batch."""
        return max(1, self.num_envs // (self.num_simulators * self.env_batches))

    @property
    def spreads(self) -> tuple[float, float, float]:
        """The sigma of simulators, generators and the trainer."""
        return self.sigma, self.sigma, self.sigma

    @property
    def takes_turns(self) -> bool:
        """Whether a simulator steps one batch at a time."""
        return True

    def build_devices(self) -> SharedDevices:
        """What the workers share: here nothing."""
        return SharedDevices()

    def find_loads(self, kind: str, number: int) -> dict[str, float]:
        """What a call of this worker occupies, by resource."""
        return {}

    def time_step(self, count: int, latency: Latency) -> float:
        """Seconds of a simulator for one turn of this many environments."""
        return self.simulator * self.num_simulators / self.num_envs * latency.draw_sum(count)

    def time_reset(self, count: int) -> float:
        """Seconds of a simulator for this many resets."""
        return 0.0

    def time_sample(self, count: int, latency: Latency) -> float:
        """Seconds of a generator for one call."""
        fixed = self.generator * self.generator_fixed
        each = self.generator * self.num_generators * (1 - self.generator_fixed) / self.num_envs
        return (fixed + each * count) * latency.draw_sum()

    def time_update(self, num_steps: int, num_stale: int, latency: Latency) -> Iterator[float]:
        """Seconds of every piece of an update, on each rank of the trainer."""
        for _ in range(max(1, round(num_steps / self.num_envs))):
            yield self.trainer * latency.draw_sum()

    def time_exchange(self) -> float:
        """Seconds in which ranks exchange gradients, after every piece of an update."""
        return 0.0

    def time_weights(self) -> WeightSyncTimes:
        """How long the parts of the way of new weights take."""
        return WeightSyncTimes()

    def time_message(self, kind: str, number: int, count: int) -> float:
        """Seconds of one way between the driver and this worker."""
        return 0.0

    def time_driver(self, count: int) -> float:
        """Seconds of the driving process for one turn of this many environments."""
        return 0.0

    @property
    def num_ranks(self) -> int:
        """Of the trainer."""
        return 1

    def draw_turns(self, number: int) -> list[int]:
        """The length of each episode of a group."""
        low, high = self.turns
        rng = np.random.default_rng([self.seed, 4, number])
        return [int(rng.integers(low, high + 1)) for _ in range(self.group_size)]


@dataclass(frozen=True, slots=True)
class WeightSyncTimes:
    """The way of new weights: the trainer's copy, its marks, the transfer, then each generator's part."""

    copy: float = 0.0
    mark: float = 0.0
    transfer: float = 0.0
    load: float = 0.0
    swap: float = 0.0


class Latency:
    """Draws of log-normal times with mean 1."""

    def __init__(self, sigma: float, seed: Sequence[int]) -> None:
        self._sigma, self._rng = sigma, np.random.default_rng(seed)

    def draw_sum(self, count: int = 1) -> float:
        """The sum of `count` draws."""
        if self._sigma == 0:
            return float(count)
        return float(np.exp(self._sigma * self._rng.standard_normal(count) - self._sigma**2 / 2).sum())
