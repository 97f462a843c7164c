"""Forecasts: modelled runs of a profile, what limits them, and profiles that are measured."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.small import small_config

from stepwell.cli.main import main
from stepwell.config.loading import load_config
from stepwell.config.profile import GeneratorTimes, PipelineProfile, SimulatorTimes, TrainerTimes, WeightTimes
from stepwell.core import ConfigError
from stepwell.runs.planner.core_speed import measure_cores
from stepwell.runs.planner.forecast import (
    Cluster,
    Forecast,
    build_case,
    change_setting,
    choose_best,
    compare_weight_syncs,
    forecast_run,
    list_cases,
    recommend_settings,
    run_case,
)
from stepwell.runs.planner.measurement import TimedCalls, list_sizes, measure_profile
from stepwell.runs.planner.report import (
    describe_limits,
    describe_weight_syncs,
    draw_forecast,
    list_rows,
)

CONFIG = load_config(
    "frozenlake",
    [
        "workers.simulators.num_workers=2",
        "workers.simulators.batch_size=4",
        "workers.generators.max_batch=16",
        "train.tasks_per_update=4",
        "train.group_size=4",
    ],
)
PROFILE = PipelineProfile(
    name="made up",
    simulator=SimulatorTimes(times=((1, 0.01),)),
    generator=GeneratorTimes(times=((1, 0.02), (16, 0.05)), cores=0),
    trainer=TrainerTimes(times=((1, 0.001),), cores=0),
    turns=(4,),
)


def forecast(profile: PipelineProfile = PROFILE, sizes: tuple[int, ...] = (1,)) -> list[Forecast]:
    return forecast_run(CONFIG, profile, Cluster(sizes, cores=4.0))


def test_what_takes_longest_is_what_limits_and_asynchrony_helps() -> None:
    rows = forecast()
    best = choose_best(rows, 1)
    assert best.case.mode != "sync" and best.gains["simulators"] > 1.2
    assert best.bottleneck == "simulators" and "simulators" in "".join(describe_limits(best))
    rates = {row.case.mode: row.turns_per_s for row in rows}
    assert rates["stream"] > 1.3 * rates["sync"]
    # two simulators of two batches of four, one step each 10 ms, on cores of their own
    assert rates["stream"] <= 2 / 0.01 * 1.01


def test_disaggregated_needs_two_devices_and_hybrid_physics_on_them() -> None:
    placements = {(case.num_devices, case.placement) for case in list_cases(Cluster((0, 1, 2)))}
    assert placements == {(0, "colocated"), (1, "colocated"), (2, "colocated"), (2, "disaggregated")}
    assert any(case.placement == "hybrid" for case in list_cases(Cluster((2,)), has_device_physics=True))


def test_a_wait_that_nobody_needs_is_taken_out_of_the_settings() -> None:
    slow = CONFIG.workers.model_copy(
        update={"generators": CONFIG.workers.generators.model_copy(update={"max_wait_ms": 500.0})}
    )
    case = next(case for case in list_cases(Cluster((1,))) if case.mode == "stream")
    hardware = build_case(
        CONFIG.model_copy(update={"workers": slow}), PROFILE, Cluster((1,), cores=4.0), case
    )
    start = run_case(case, hardware)
    better, chosen = recommend_settings(start)
    assert better.turns_per_s > 1.1 * start.turns_per_s
    assert {"workers.generators.max_wait_ms", "workers.generators.max_batch"} & set(chosen)
    for name, value in chosen.items():  # the forecast is that of all of them together
        assert change_setting(better.hardware, name, value) == better.hardware


@pytest.mark.parametrize("mode", ["sync", "rollout_async", "train_async", "stream"])
def test_a_shortened_case_forecasts_what_the_whole_one_does(mode: str) -> None:
    profile = PROFILE.model_copy(
        update={
            "turns": (18, 20, 22),
            "simulator": SimulatorTimes(times=((1, 0.01),), spread=0.5, reset_s=0.05),
            "weights": WeightTimes(copy_s=0.05, load_s=0.1, swap_s=0.02),
            "controller_s": 0.001,
        }
    )
    case = next(case for case in list_cases(Cluster((2,))) if case.mode == mode)
    hardware = build_case(CONFIG, profile, Cluster((2,), cores=4.0), case)
    whole = run_case(case, replace(hardware, shortened=1.0))
    short = run_case(case, replace(hardware, shortened=4.0))
    assert short.turns_per_s == pytest.approx(whole.turns_per_s, rel=0.08)
    assert short.mean_batch == pytest.approx(whole.mean_batch, rel=0.25)
    assert short.sync_wait_s == pytest.approx(whole.sync_wait_s, rel=0.25)


def test_a_large_fleet_is_shortened_and_a_small_one_is_not() -> None:
    profile = PROFILE.model_copy(update={"turns": (20,)})
    found = {}
    for size in (1, 64):
        cluster = Cluster((size,), cores=4.0)
        found[size] = build_case(CONFIG, profile, cluster, next(list_cases(cluster)))
    assert found[1].shortened == 1.0 and found[64].shortened > 1.0
    assert found[64].num_simulators == 64 * found[1].num_simulators


def test_the_command_prints_draws_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PROFILE.write_file(tmp_path / "p.toml")
    settings = ["frozenlake", "workers.simulators.batch_size=2", "train.tasks_per_update=4"]
    files = ["--svg", str(tmp_path / "p.svg"), "--json", str(tmp_path / "p.json")]
    profile = ["--profile", str(tmp_path / "p.toml"), "--devices", "1", "--cores", "4"]
    assert main(["plan", *settings, *profile, *files]) == 0
    printed = capsys.readouterr().out
    assert "recommended workers.mode=" in printed and "modelled, not measured" in printed
    assert "overlapped: the trainer waits" in printed and "blocking: the trainer waits" in printed
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    found = json.loads((tmp_path / "p.json").read_text())
    assert len(found["forecasts"]) == 4 and found["profile"]["name"] == "made up"
    assert main(["plan", "frozenlake", "--measure", "--profile", "x.toml"]) == 2


def test_a_chart_over_devices_has_one_line_per_placement_and_mode() -> None:
    rows = forecast(sizes=(1, 2))
    svg = draw_forecast(rows, "title")
    assert svg.count("<polyline") >= 8 and len(list(list_rows(rows))) == len(rows)


def test_weights_that_travel_long_cost_less_if_the_trainer_goes_on() -> None:
    weights = WeightTimes(copy_s=0.01, mark_s=0.1, load_s=0.2, swap_s=0.02, num_bytes=1e8, bandwidth=1e9)
    profile = PROFILE.model_copy(
        update={"weights": weights, "trainer": TrainerTimes(times=((1, 0.01),), cores=0)}
    )
    case = next(case for case in list_cases(Cluster((1,))) if case.mode == "stream")
    ways = compare_weight_syncs(run_case(case, build_case(CONFIG, profile, Cluster((1,), cores=4.0), case)))
    assert ways["overlapped"].hardware.weight_sync == CONFIG.workers.weight_sync == "overlapped"
    assert ways["blocking"].sync_wait_s >= 0.429  # 0.01 + 0.1 + 0.1 + 0.2 + 0.02
    assert ways["overlapped"].sync_wait_s == pytest.approx(0.01)
    assert ways["overlapped"].turns_per_s > 1.1 * ways["blocking"].turns_per_s
    told = "\n".join(describe_weight_syncs(ways))
    assert "a generator cannot sample for 20 ms" in told
    _, chosen = recommend_settings(ways["blocking"])
    assert chosen["workers.weight_sync"] == "overlapped"


def test_sizes_grow_by_four_to_the_largest() -> None:
    assert [list_sizes(n) for n in (1, 4, 40)] == [[1], [1, 4], [1, 4, 16, 40]]


def test_timed_calls_give_medians_that_never_fall_with_the_size() -> None:
    calls = TimedCalls()
    for count in (1, 4, 4, 16):
        calls.run(count, lambda: None)
    for call, wall_s in zip(calls.calls, (0.2, 0.1, 0.3, 0.9), strict=True):
        call.wall_s = wall_s
    points = calls.list_points([1, 4, 16])
    assert [value for point in points for value in point] == pytest.approx([1.0, 0.2, 4.0, 0.2, 16.0, 0.9])


def test_a_measured_profile_has_times_of_every_part() -> None:
    config = small_config(
        "recipe.name=rloo",
        "workers.simulators.num_workers=1",
        "workers.simulators.env_batches=1",
        "workers.simulators.batch_size=4",
    )
    profile = measure_profile(config, budget_s=1.0)
    assert profile.simulator.compute_seconds(1) > 0 and profile.simulator.reset_s > 0
    assert profile.generator.compute_seconds(4) > 0 and profile.trainer.compute_seconds(8) > 0
    weights = profile.weights
    assert weights.num_bytes > 1e5
    assert min(weights.copy_s, weights.mark_s, weights.load_s, weights.swap_s) > 0
    assert set(profile.turns) <= {1, 2} and profile.controller_s > 0


def test_a_missing_profile_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--measure"):
        PipelineProfile.read_file(tmp_path / "none.toml")


def test_cores_are_counted_by_the_work_that_they_do_together() -> None:
    num_cores = len(os.sched_getaffinity(0))
    found = measure_cores(0.1)
    assert 0.3 * num_cores <= found <= num_cores


def test_cores_are_counted_where_a_process_begins_when_its_time_is_over() -> None:
    assert measure_cores(0.0) > 0
