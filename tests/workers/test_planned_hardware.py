"""Measured times on a placement: what a turn, a reset, a message and a sync cost, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.config.profile import (
    CallTimes,
    GeneratorTimes,
    NetworkTimes,
    PipelineProfile,
    SimulatorTimes,
    TrainerTimes,
    WeightTimes,
)
from stepwell.core import ConfigError
from stepwell.workers.modelled import run_modelled
from stepwell.workers.placement import DevicePlacement
from stepwell.workers.planned_hardware import PlannedHardware

PROFILE = PipelineProfile(
    simulator=SimulatorTimes(times=((1, 0.5),), reset_s=0.25),
    generator=GeneratorTimes(times=((1, 1.0), (5, 3.0)), cores=0),
    trainer=TrainerTimes(times=((1, 0.125),), cores=0),
    turns=(4,),
)
GPU = DevicePlacement("colocated", ("a/cpu", "a/cpu"), ("a/cuda:0",), ("a/cuda:0",))
HARDWARE = PlannedHardware(
    num_envs=8,
    num_simulators=2,
    env_batches=1,
    num_generators=1,
    global_batch=8,
    max_batch=8,
    profile=PROFILE,
    placement=GPU,
)


def run_s(hardware: PlannedHardware, mode: str = "sync", num_updates: int = 2) -> float:
    """Seconds of an update, in the middle."""
    run = run_modelled(hardware, mode, num_updates)  # type: ignore[arg-type]
    return (run.marks[-1][0] - run.marks[0][0]) / (num_updates - 1)


def test_times_are_interpolated_and_go_on_with_the_last_slope() -> None:
    times = CallTimes(times=((1, 1.0), (5, 3.0), (9, 3.0)))
    assert [times.compute_seconds(n) for n in (0, 1, 3, 7, 20)] == pytest.approx([0, 1.0, 2.0, 3.0, 3.0])
    assert CallTimes(times=((2, 1.0),)).compute_seconds(5) == pytest.approx(2.5)
    with pytest.raises(ValueError, match="rising counts"):
        CallTimes(times=((2, 1.0), (1, 1.0)))


def test_in_step_an_update_costs_resets_steps_samples_and_learning() -> None:
    # two simulators on two cores: 4 resets, then 4 turns of 4 x 0.5 + a call of 8 (4.5 s); 32 steps learnt
    assert run_s(HARDWARE) == pytest.approx(4 * 0.25 + 4 * (2.0 + 4.5) + 32 * 0.125)


def test_simulators_that_share_one_core_take_twice_as_long() -> None:
    slow = run_s(replace(HARDWARE, cores=1.0))
    assert slow == pytest.approx(2 * (4 * 0.25 + 4 * 2.0) + 4 * 4.5 + 32 * 0.125)


def test_simulators_that_only_wait_need_no_core() -> None:
    waiting = PROFILE.model_copy(
        update={"simulator": SimulatorTimes(times=((1, 0.5),), reset_s=0.25, cores=0)}
    )
    assert run_s(replace(HARDWARE, cores=1.0, profile=waiting)) == pytest.approx(run_s(HARDWARE))


def test_a_sync_of_weights_and_the_driver_add_their_time() -> None:
    weights = WeightTimes(num_bytes=2e9, bandwidth=1e9, load_s=0.5)
    profile = PROFILE.model_copy(update={"weights": weights, "controller_s": 0.01})
    # the driver handles 8 resets and 4 x 8 turns one after the other, beside the simulators
    assert run_s(replace(HARDWARE, profile=profile, cores=99.0)) == pytest.approx(
        run_s(HARDWARE) + 2.5 + 5 * 8 * 0.01, abs=5 * 4 * 0.01
    )


def test_workers_of_another_machine_answer_later() -> None:
    away = DevicePlacement("disaggregated", ("a/cpu", "a/cpu"), ("b/cuda:0",), ("a/cuda:0",))
    network = NetworkTimes(latency_s=0.1, request_bytes=1000, bandwidth=8000)
    profile = PROFILE.model_copy(update={"network": network})
    # every call of 8 requests travels both ways: 0.1 s and 8 x 1000 bytes
    assert run_s(replace(HARDWARE, placement=away, profile=profile)) == pytest.approx(
        run_s(HARDWARE) + 4 * 2 * (0.1 + 1.0) + 0.1
    )


def test_ranks_share_an_update_and_exchange_gradients() -> None:
    two = DevicePlacement("colocated", ("a/cpu", "a/cpu"), ("a/cuda:0",), ("a/cuda:0", "b/cuda:0"))
    weights, network = WeightTimes(num_bytes=1e9, bandwidth=1e12), NetworkTimes(latency_s=0, bandwidth=1e9)
    trainer = TrainerTimes(times=((1, 0.125),), cores=0, optimizer_steps=3)
    profile = PROFILE.model_copy(update={"weights": weights, "network": network, "trainer": trainer})
    one, both = (run_s(replace(HARDWARE, placement=place, profile=profile)) for place in (GPU, two))
    assert both == pytest.approx(one - 32 * 0.125 / 2 + 3 * 1.0)  # 2 x (2 - 1) / 2 gigabytes per step


def test_on_one_device_sampling_and_learning_slow_each_other_down() -> None:
    apart = DevicePlacement("disaggregated", ("a/cpu", "a/cpu"), ("a/cuda:1",), ("a/cuda:0",))
    long = PROFILE.model_copy(update={"trainer": TrainerTimes(times=((1, 0.5),), cores=0)})
    shared, free = (
        run_modelled(replace(HARDWARE, placement=place, profile=long), "stream", 5).throughput
        for place in (GPU, apart)
    )
    assert free > 1.2 * shared


def test_one_environment_may_stand_for_several() -> None:
    coarse = replace(HARDWARE, num_envs=4, global_batch=4, max_batch=4, stands_for=2)
    assert run_s(coarse) == pytest.approx(run_s(HARDWARE))


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    PROFILE.write_file(tmp_path / "p.toml")
    assert PipelineProfile.read_file(tmp_path / "p.toml") == PROFILE
    (tmp_path / "odd.toml").write_text("[generator]\nspeed = 3\n")
    with pytest.raises(ConfigError, match="not a profile"):
        PipelineProfile.read_file(tmp_path / "odd.toml")
