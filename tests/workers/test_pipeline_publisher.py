"""The forecast's way of new weights: the order of the real publisher, and what each part of it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from stepwell.config.profile import GeneratorTimes, PipelineProfile, SimulatorTimes, TrainerTimes, WeightTimes
from stepwell.core.weight_parts import WeightParts
from stepwell.runs.build.weight_publisher import WeightPublisher
from stepwell.workers.contracts import SyncAnswer
from stepwell.workers.modelled import run_modelled
from stepwell.workers.pipeline import ModelledRun, PipelinePublisher
from stepwell.workers.placement import DevicePlacement
from stepwell.workers.planned_hardware import PlannedHardware

WEIGHTS = WeightTimes(copy_s=0.25, mark_s=0.5, num_bytes=1e9, bandwidth=1e9, load_s=2.0, swap_s=0.75)
APART = DevicePlacement("disaggregated", ("a/cpu",), ("a/cuda:1",), ("a/cuda:0",))
HARDWARE = PlannedHardware(
    num_envs=2,
    num_simulators=1,
    env_batches=1,
    num_generators=1,
    global_batch=2,
    max_batch=2,
    max_staleness=1,
    profile=PipelineProfile(
        simulator=SimulatorTimes(times=((1, 0.5),)),
        generator=GeneratorTimes(times=((2, 1.0),), cores=0),
        trainer=TrainerTimes(times=((1, 1.0),), cores=0),
        weights=WEIGHTS,
        turns=(4,),
    ),
    placement=APART,
    cores=99.0,
)


class Gates:
    """What happens, in order; weights of a version arrive when their gate is open."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.open = {1: asyncio.Event(), 2: asyncio.Event()}

    async def take(self, version: int) -> None:
        await self.open[version].wait()
        self.events.append(f"{version} arrived")


class RealPublisher:
    """`WeightPublisher`, with a trainer in another thread."""

    name = "generator"

    def __init__(self, gates: Gates) -> None:
        loop = asyncio.get_running_loop()
        self._gates, self._version = gates, 0
        self._publisher = WeightPublisher(
            [self],  # type: ignore[list-item]
            torch.float32,
            lambda work: asyncio.run_coroutine_threadsafe(work, loop),
        )

    def weight_parts(self) -> WeightParts:
        self._gates.events.append(f"{self._version} copied")
        return WeightParts({"w": torch.full((4,), float(self._version))})

    def model_weights(self) -> dict[str, Any]:
        return dict(self.weight_parts().tensors)

    async def sync_weights(self, snapshot: Any) -> SyncAnswer:
        await self._gates.take(snapshot.version)
        return SyncAnswer(snapshot.fingerprint, 0.0, 16)

    async def publish(self, version: int) -> None:
        self._version = version
        await asyncio.to_thread(self._publisher.publish, version, self)

    async def await_version(self, version: int) -> None:
        await asyncio.to_thread(self._publisher.await_version, version)


class GatedTrainer:
    """A trainer of the forecast's pipeline."""

    def __init__(self, gates: Gates) -> None:
        self._gates, self._version = gates, 0

    async def update(self, num_steps: int, num_stale: int) -> None:
        raise AssertionError("nothing is learnt here")

    async def copy_weights(self) -> None:
        self._version += 1
        self._gates.events.append(f"{self._version} copied")

    async def send_weights(self, version: int, generators: Sequence[Any]) -> None:
        await self._gates.take(version)


def build_modelled(gates: Gates) -> PipelinePublisher:
    return PipelinePublisher(GatedTrainer(gates), [], lambda version: None)


@pytest.mark.parametrize("build", [RealPublisher, build_modelled])
async def test_the_forecast_publishes_in_the_order_of_the_real_publisher(
    build: Callable[[Gates], Any],
) -> None:
    gates = Gates()
    publisher = build(gates)

    async def note(work: Awaitable[None], event: str) -> None:
        await work
        gates.events.append(event)

    await note(publisher.publish(1), "the trainer goes on")
    second = asyncio.ensure_future(note(publisher.publish(2), "the trainer goes on"))
    await asyncio.sleep(0.02)  # time to do it too early
    gates.open[1].set()
    await second
    await note(publisher.await_version(1), "1 is learnt from")
    third = asyncio.ensure_future(note(publisher.await_version(2), "2 is learnt from"))
    await asyncio.sleep(0.02)
    gates.open[2].set()
    await third
    assert gates.events == [
        "1 copied",
        "the trainer goes on",
        "1 arrived",
        "2 copied",
        "the trainer goes on",
        "1 is learnt from",
        "2 arrived",
        "2 is learnt from",
    ]


def run_way(way: str, mode: str = "stream", **changes: Any) -> ModelledRun:
    return run_modelled(replace(HARDWARE, weight_sync=way, **changes), mode, 6, stale_data="weight")  # type: ignore[arg-type]


def test_overlapped_the_trainer_waits_for_its_copy_and_blocking_for_all_of_the_way() -> None:
    slow = HARDWARE.profile.model_copy(update={"trainer": TrainerTimes(times=((1, 2.0),), cores=0)})
    whole_s = 0.25 + 0.5 + 1.0 + 2.0 + 0.75
    blocking, beside = (run_way(way, profile=slow) for way in ("blocking", "overlapped"))
    assert beside.sync_s == pytest.approx(6 * 0.25)  # 16 s of learning after each copy hide the rest
    assert blocking.num_syncs == beside.num_syncs == 6
    assert 6 * whole_s <= blocking.sync_s <= 6 * (whole_s + 1.0)  # a swap waits for a call under way
    assert blocking.elapsed - beside.elapsed > 4 * (whole_s - 0.25)


def test_in_step_both_ways_cost_the_same() -> None:
    blocking, beside = (run_way(way, "sync") for way in ("blocking", "overlapped"))
    assert beside.elapsed == pytest.approx(blocking.elapsed)
    assert beside.sync_s == pytest.approx(6 * 0.25 + 5 * (0.5 + 1.0 + 2.0 + 0.75))


def test_a_trainer_that_is_faster_than_its_weights_waits_for_them() -> None:
    slow = WEIGHTS.model_copy(update={"load_s": 60.0})
    run = run_way("overlapped", profile=HARDWARE.profile.model_copy(update={"weights": slow}))
    assert run.sync_s > 5 * 40.0
    assert max(run.staleness) <= 2


@pytest.mark.parametrize("max_inflight", [1, 4])
def test_a_generator_stands_still_for_the_swap_whether_calls_are_alone_or_join_each_other(
    max_inflight: int,
) -> None:
    free = WEIGHTS.model_copy(update={"load_s": 0.0, "mark_s": 0.0, "copy_s": 0.0, "num_bytes": 0.0})
    limited = HARDWARE.profile.model_copy(
        update={
            "simulator": SimulatorTimes(times=((1, 0.0),)),
            "trainer": TrainerTimes(times=((1, 1e-6),), cores=0),
        }
    )
    elapsed = [
        run_way(
            "overlapped",
            max_inflight=max_inflight,
            profile=limited.model_copy(update={"weights": free.model_copy(update={"swap_s": swap_s})}),
        ).elapsed
        for swap_s in (0.0, 0.75)
    ]
    assert elapsed[1] - elapsed[0] == pytest.approx(6 * 0.75, abs=0.8)
