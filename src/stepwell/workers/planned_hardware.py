"""Modelled devices with measured times, on the devices of a placement.

    PipelineProfile (times) + DevicePlacement (who is where) + settings ─► PlannedHardware ─► run_modelled

Resources: every accelerator of the placement; the cores of every machine; the process that drives all. A
device is `cpu`, `cuda:0` or `HOST/cuda:0`; what stands before the slash is the machine. The driver and the
first rank are on the machine of the first trainer.

Simplifications, all of them visible in the profile
* A call to a worker of another machine takes two messages; a request and its answer are of equal size.
* Ranks learn equal shares. They exchange gradients in a ring after each optimizer step.
* With `shortened`, episodes have that many times fewer turns, and everything that is done once for each
  episode, update or version takes that many times less. Throughput stays; fewer turns are modelled.
* Weights go to every other machine in a tree of whole copies, then to its devices. They are marked and
  checked by one core of the trainer's machine, and of the machine of each generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stepwell.config.profile import PipelineProfile
from stepwell.workers.modelled_hardware import Latency, ModelledHardware, WeightSyncTimes
from stepwell.workers.placement import CORES, DevicePlacement
from stepwell.workers.shared_devices import SharedDevices

CONTROLLER = "controller"
MAX_PIECES = 8
"""An update is modelled in at most this many pieces, whatever the number of its optimizer steps."""


def find_machine(device: str) -> str:
    """The machine of a device; empty for this one."""
    return device.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class PlannedHardware(ModelledHardware):
    """A profile on a placement. `num_envs` and the other settings are those of the base."""

    profile: PipelineProfile = field(default_factory=PipelineProfile)
    placement: DevicePlacement = field(
        default_factory=lambda: DevicePlacement("colocated", (CORES,), (CORES,), (CORES,))
    )
    cores: float = 2.0  # of each machine
    background: float = 0.0  # cores that other programs ask for all the time, on each machine
    stands_for: int = 1  # environments that one modelled environment stands for
    shortened: float = 1.0  # how many times shorter episodes and updates are than those of the run
    in_step: bool = False  # all environments wait for the slowest one, in every turn

    @property
    def spreads(self) -> tuple[float, float, float]:
        profile = self.profile
        return profile.simulator.spread, profile.generator.spread, profile.trainer.spread

    @property
    def takes_turns(self) -> bool:
        return not self.profile.simulator.at_once

    @property
    def num_ranks(self) -> int:
        return len(self.placement.trainers)

    @property
    def machines(self) -> list[str]:
        """All machines, the driver's first."""
        placement = self.placement
        devices = (*placement.trainers, *placement.generators, *placement.simulators)
        return list(dict.fromkeys(map(find_machine, devices)))

    def build_devices(self) -> SharedDevices:
        devices, placement = SharedDevices(), self.placement
        for machine in self.machines:
            devices.add_device(f"{machine}/{CORES}", self.cores, background=self.background)
        for device in (*placement.simulators, *placement.generators, *placement.trainers):
            if not device.endswith(CORES):
                devices.add_device(device, 1.0, self.profile.switch_s)
        devices.add_device(CONTROLLER, 1.0)
        return devices

    def find_loads(self, kind: str, number: int) -> dict[str, float]:
        if kind == "driver":
            return {CONTROLLER: 1.0, f"{find_machine(self.placement.trainers[0])}/{CORES}": 1.0}
        if kind == "marks":
            return {f"{find_machine(self.placement.trainers[0])}/{CORES}": 1.0}
        if kind == "checks":
            return {f"{find_machine(self.placement.generators[number])}/{CORES}": 1.0}
        rows = {
            "simulator": (self.placement.simulators, self.profile.simulator),
            "generator": (self.placement.generators, self.profile.generator),
            "trainer": (self.placement.trainers, self.profile.trainer),
        }
        places, times = rows[kind]
        device = places[number]
        loads = {f"{find_machine(device)}/{CORES}": times.cores}
        return loads if device.endswith(CORES) else loads | {device: times.device}

    def time_step(self, count: int, latency: Latency) -> float:
        num_draws = self._count_draws()
        return sum(self._draw_step(count, latency) for _ in range(num_draws)) / num_draws

    def _count_draws(self) -> int:
        """One turn stands for several: an episode then takes as long, relative to others, as a whole one."""
        return 1 if self.in_step else max(1, round(self.shortened))

    def _draw_step(self, count: int, latency: Latency) -> float:
        simulator, whole = self.profile.simulator, count * self.stands_for
        if simulator.at_once:
            return simulator.compute_seconds(whole) * max(latency.draw_sum() for _ in range(whole))
        return simulator.compute_seconds(whole) * latency.draw_sum(whole) / whole

    def time_reset(self, count: int) -> float:
        simulator = self.profile.simulator
        return simulator.reset_s * (1 if simulator.at_once else count * self.stands_for) / self.shortened

    def time_sample(self, count: int, latency: Latency) -> float:
        num_draws = self._count_draws()
        seconds = self.profile.generator.compute_seconds(count * self.stands_for) / num_draws
        return seconds * latency.draw_sum(num_draws)

    def time_update(self, num_steps: int, num_stale: int, latency: Latency) -> Iterator[float]:
        pieces, trainer = self._count_pieces(), self.profile.trainer
        whole = num_steps * self.stands_for * self.shortened
        share_s = trainer.compute_seconds(whole / self.num_ranks) / self.shortened / pieces
        share_s *= 1 + trainer.stale_share * num_stale / max(num_steps, 1)
        yield self.profile.update_s / self.shortened + share_s * latency.draw_sum()
        for _ in range(pieces - 1):
            yield share_s * latency.draw_sum()

    def _count_pieces(self) -> int:
        return min(MAX_PIECES, self.profile.trainer.optimizer_steps)

    def time_exchange(self) -> float:
        ranks, weights, network = self.num_ranks, self.profile.weights, self.profile.network
        if ranks == 1:
            return 0.0
        machines = len({find_machine(device) for device in self.placement.trainers})
        bandwidth = weights.bandwidth if machines == 1 else min(weights.bandwidth, network.bandwidth)
        latency_s = 2 * network.latency_s * math.ceil(math.log2(machines)) if machines > 1 else 0.0
        each_s = 2 * weights.num_bytes * (ranks - 1) / ranks / bandwidth + latency_s
        return each_s * self.profile.trainer.optimizer_steps / self._count_pieces() / self.shortened

    def time_weights(self) -> WeightSyncTimes:
        weights, network = self.profile.weights, self.profile.network
        machines = len({find_machine(device) for device in self.placement.generators} | {self.machines[0]})
        hops = math.ceil(math.log2(machines)) if machines > 1 else 0
        copy_s = weights.num_bytes / network.bandwidth + network.latency_s
        transfer_s = weights.num_bytes / weights.bandwidth + hops * copy_s
        parts = (weights.copy_s, weights.mark_s, transfer_s, weights.load_s, weights.swap_s)
        return WeightSyncTimes(*(seconds / self.shortened for seconds in parts))

    def time_message(self, kind: str, number: int, count: int) -> float:
        places = self.placement.simulators if kind == "simulator" else self.placement.generators
        network = self.profile.network
        if find_machine(places[number]) == find_machine(self.placement.trainers[0]):
            return 0.0
        return network.latency_s + count * self.stands_for * network.request_bytes / network.bandwidth

    def time_driver(self, count: int) -> float:
        return count * self.stands_for * self.profile.controller_s

    def draw_turns(self, number: int) -> list[int]:
        rng = np.random.default_rng([self.seed, 4, number])
        turns = rng.choice(self.profile.turns, self.group_size)
        if self.shortened == 1.0:
            return [int(count) for count in turns]
        rounded = np.floor(turns / self.shortened + rng.random(self.group_size))  # right on average
        return [max(1, int(count)) for count in rounded]
