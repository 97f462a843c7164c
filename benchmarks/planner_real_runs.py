"""The real half of `planner_reality.py`: whole runs of `stepwell train`, and their forecasts.

On a machine that others use too, a run gets only a part of the cores: the more processes it has, the more.
What others ask for is measured for a second before and after each run (`measure_background`); the forecast
assumes the mean.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from planner_reality import make_row

from stepwell.config.loading import load_config
from stepwell.config.profile import PipelineProfile
from stepwell.config.run import RunConfig
from stepwell.monitors.jsonl import read_entries
from stepwell.runs.build.components import Components
from stepwell.runs.planner.core_speed import measure_cores
from stepwell.runs.planner.forecast import Cluster, ForecastCase, build_case
from stepwell.runs.planner.measurement import measure_profile
from stepwell.runs.run import train
from stepwell.workers.modelled import run_modelled

QUIET = (
    "num_threads=1",
    "eval.num_tasks=0",
    "checkpoint.every=0",
    "monitor.console=false",
    "monitor.tensorboard=false",
    "monitor.report=false",
    "warm_start.num_demos=0",
    "workers.generators.num_threads=1",
)
LAKE = (
    "frozenlake",
    "recipe.name=grpo",
    "sampling.max_tokens=12",
    "train.tasks_per_update=4",
    "train.group_size=4",
    "train.num_updates=7",
    "workers.simulators.num_workers=1",
    "workers.simulators.env_batches=2",
    "workers.simulators.batch_size=8",
)
REACH = (
    "metaworld-reach",
    'env.options={task="reach", max_actions=50}',
    "policy.vla={chunk=10, width=128, layers=2}",
    "train.tasks_per_update=64",
    "train.group_size=1",
    "train.update_epochs=1",
    "train.num_updates=8",
    "workers.simulators.num_workers=2",
    "workers.simulators.env_batches=2",
    "workers.simulators.batch_size=16",
    "workers.generators.max_wait_ms=5",
)
GPU_REACH = (
    *REACH,
    'policy.vla={head="flow", chunk=10, width=512, layers=6, denoising_steps=8}',
    "train.tasks_per_update=384",
    "workers.simulators.num_workers=12",
    "workers.simulators.batch_size=16",
)
SKIPPED = 2
RealCase = tuple[tuple[str, ...], str, tuple[str, ...]]
"""Settings of an environment, a mode, and more settings."""


def compare_real_runs(device: str, chosen: slice = slice(None)) -> Iterator[dict[str, Any]]:
    """All or some cases of a device, one by one; one profile for each environment."""
    if device == "cpu":
        return compare_cases(list_cpu_cases()[chosen], device)
    one = ("workers.simulators.env_batches=1", "workers.simulators.batch_size=32")
    few = ("workers.simulators.num_workers=6", "train.tasks_per_update=192")
    modes = [(mode, ()) for mode in ("sync", "rollout_async", "train_async", "stream")]
    cases = [*modes, ("stream", one), ("stream", few)]
    return compare_cases([(GPU_REACH, mode, more) for mode, more in cases][chosen], device)


def list_cpu_cases() -> list[RealCase]:
    """Six of each environment: every mode, streaming with other simulators, and with other batches."""
    modes = ("sync", "rollout_async", "train_async", "stream")
    two = ("workers.simulators.num_workers=2", "workers.simulators.batch_size=4")
    one = ("workers.simulators.num_workers=1", "workers.simulators.batch_size=32")
    large = ("workers.simulators.env_batches=1", "workers.simulators.batch_size=16")
    small = ("workers.simulators.env_batches=4", "workers.simulators.batch_size=8")
    return [
        *((LAKE, mode, ()) for mode in modes),
        (LAKE, "stream", two),
        (LAKE, "stream", large),
        *((REACH, mode, ()) for mode in modes),
        (REACH, "stream", one),
        (REACH, "stream", small),
    ]


def compare_cases(cases: list[RealCase], device: str) -> Iterator[dict[str, Any]]:
    """Measure each profile once, then forecast and run every case."""
    torch.set_num_threads(1)
    profiles: dict[tuple[str, ...], PipelineProfile] = {}
    for base, mode, more in cases:
        settings = [*base[1:], *QUIET, *more, f"policy.device={device}", f"workers.mode={mode}"]
        config = load_config(base[0], settings)
        if base not in profiles:
            began = time.perf_counter()
            profiles[base] = measure_profile(config, budget_s=8.0)
            print(f"profile of {base[0]}: {time.perf_counter() - began:.1f} s", flush=True)
        before = measure_background()
        measured = run_training(config)
        others = mean((before, measure_background()))
        modelled = forecast_training(config, profiles[base], others, device)
        label = ", ".join([base[0], mode, *more])
        yield make_row("real", label, modelled, measured, background=round(others, 2))


def run_training(config: RunConfig) -> float:
    """Turns per second in the middle of a run."""
    with tempfile.TemporaryDirectory() as place:
        folder = train(config.model_copy(update={"folder": place, "name": "run"}))
        entries = [entry for entry in read_entries(folder / "metrics.jsonl") if entry.kind == "update"]
    last = len(entries) - 1 - (config.workers.max_staleness if config.workers.mode == "stream" else 1)
    first, end = entries[SKIPPED - 1], entries[last]
    size = config.workers.global_batch or config.train.tasks_per_update * config.train.group_size
    turns = [entry.values["turns"] * size for entry in entries[SKIPPED : last + 1]]
    return float(sum(turns)) / (end.time_s - first.time_s)


def forecast_training(config: RunConfig, profile: PipelineProfile, others: float, device: str) -> float:
    """The same figure of a modelled run."""
    case = ForecastCase(0 if device == "cpu" else 1, "colocated", config.workers.mode)  # type: ignore[arg-type]
    components = Components(config, for_plan=True)
    try:
        inflight = components.backend.default_inflight
    finally:
        components.close()
    hardware = build_case(
        config,
        profile,
        Cluster((case.num_devices,), cores=measure_cores(), background=others),
        case,
        inflight,
    )
    run = run_modelled(hardware, case.mode, config.train.num_updates, stale_data="weight")
    skip_last = config.workers.max_staleness if case.mode == "stream" else 1
    return hardware.stands_for * run.measure_middle(SKIPPED, skip_last)


def measure_background(seconds: float = 1.0) -> float:
    """Cores that other programs ask for now, by what busy processes, one per core, get of the clock."""
    count = len(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(count) as pool:
        got = max(0.05, sum(pool.map(_spin, [seconds] * count)))
    return max(0.0, count * count / got - count)


def _spin(seconds: float) -> float:
    end, cpu = time.perf_counter() + seconds, time.process_time()
    while time.perf_counter() < end:
        pass
    return (time.process_time() - cpu) / seconds


if __name__ == "__main__":
    print(Path(__file__).name, "is a part of planner_reality.py")
