"""The real half of `async_throughput.py`: parts timed alone, then whole runs in every mode.

Parts alone, per environment transition:
* simulators: the run's simulator processes, driven as in a run, with recorded samples as answers at once;
* generator: its engine, on recorded requests, in batches of all environments;
* trainer: an update on recorded episodes.
Each also tells the processor time it used (of its processes), and on a GPU the time of its kernels.

They are timed before every run and after the last (`--ends`: before the first and after the last), and the
mean counts. A shared machine may be half as fast a minute later, so all times are divided by how long a
yardstick took meanwhile (`pace.py`): a second is one of the machine as fast as it was at first. What the
clock said is kept beside it.

A run's throughput is taken between two updates in the middle of it: after the first ones, and before the last
ones, for which nothing is played any more.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pace import Pace
from rich.console import Console
from rich.table import Table

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Request, Sampled, SamplingParams, Split
from stepwell.monitors.jsonl import read_entries
from stepwell.rollout import Job, Rollout
from stepwell.runs.build.components import Components
from stepwell.runs.build.worker_builder import WorkerBuilder
from stepwell.runs.build.worker_plan import check_workers
from stepwell.runs.machine import describe_machine
from stepwell.runs.run import train
from stepwell.workers.contracts import WorkerHealth
from stepwell.workers.driver import Driver, PlannedEpisode, PlayedEpisode
from stepwell.workers.request_queue import RequestQueue

RESULTS = Path(__file__).parent / "results"
MODES = ("sync", "rollout_async", "train_async", "stream")
SETTINGS = (
    "env.name=metaworld",
    'env.options={task="reach", max_actions=50}',
    "policy.critic=own",
    "policy.vla={chunk=25, width=256, layers=4}",
    "recipe.name=steppo",
    "recipe.kl_coef=0",
    "num_threads=1",
    "train.tasks_per_update=512",
    "train.group_size=1",
    "train.num_updates=9",
    "train.update_epochs=1",
    "eval.num_tasks=0",
    "checkpoint.every=0",
    "monitor.console=false",
    "monitor.tensorboard=false",
    "monitor.report=false",
    "workers.simulators.num_workers=2",
    "workers.simulators.env_batches=2",
    "workers.simulators.batch_size=64",
    "workers.generators.num_threads=1",
    "workers.generators.max_batch=128",
    "workers.generators.max_wait_ms=60",
)
NUM_SKIPPED = 3


@dataclass
class Cost:
    """Of one environment transition, in seconds; `pace` is how long the yardstick took meanwhile."""

    wall_s: float
    cpu_s: float
    gpu_s: float = 0.0
    pace: float = 1.0


def real(settings: Sequence[str], name: str, *, write: bool, between: bool = True) -> None:
    """Time the parts, run every mode, show and keep the table."""
    config = load_config(None, [*SETTINGS, *settings, "workers.mode=stream"])
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    with Pace() as pace:
        timed, rows = [print_figures("parts", alone(config, pace))], []
        for mode in MODES:
            rows.append(print_figures(mode, run(config, mode, pace)))
            if between or mode == MODES[-1]:
                timed.append(print_figures("parts", alone(config, pace)))
    costs = mean_costs(timed)
    limits, by_the_clock = bounds(costs), bounds(mean_costs(timed, is_paced=False))
    for row in rows:
        row["of_bound"] = round(row["env_steps_per_s"] * max(limits.values()), 3)
        clock = row["env_steps_per_s_by_the_clock"]
        row["of_bound_by_the_clock"] = round(clock * max(by_the_clock.values()), 3)
        row["times_sync"] = round(row["env_steps_per_s"] / rows[0]["env_steps_per_s"], 3)
    show(rows, costs, limits)
    if write:
        result = {
            "machine": describe_machine(),
            "settings": [*SETTINGS, *settings],
            "alone": {part: vars(cost) for part, cost in costs.items()},
            "alone_each_time": [{part: vars(cost) for part, cost in each.items()} for each in timed],
            "seconds_per_step_at_least": limits,
            "bound_env_steps_per_s": 1.0 / max(limits.values()),
            "rows": rows,
        }
        (RESULTS / f"async_throughput_{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def print_figures(name: str, found: Any) -> Any:
    """What was found, after a line that says so: minutes pass until the table."""
    console = Console()
    if name == "parts":
        figures = ", ".join(f"{part} {1e6 * cost.wall_s:.1f}" for part, cost in found.items())
        console.print(f"parts alone, microseconds per transition: {figures}", highlight=False)
    else:
        console.print(f"{name}: {found['env_steps_per_s']:,.0f} env steps per second", highlight=False)
    return found


def mean_costs(timed: Sequence[dict[str, Cost]], *, is_paced: bool = True) -> dict[str, Cost]:
    """Of every part, on a machine as fast as at first, or as the clock said; a GPU has its own pace."""

    def mean(part: str, name: str) -> float:
        costs = [each[part] for each in timed]
        is_divided = is_paced and name != "gpu_s"
        return float(np.mean([getattr(cost, name) / (cost.pace if is_divided else 1.0) for cost in costs]))

    return {part: Cost(mean(part, "wall_s"), mean(part, "cpu_s"), mean(part, "gpu_s")) for part in timed[0]}


def bounds(costs: dict[str, Cost]) -> dict[str, float]:
    """Seconds per transition that nothing can go below, by reason."""
    cores = len(os.sched_getaffinity(0))
    return {
        **{f"{part} alone": cost.wall_s for part, cost in costs.items()},
        f"processor time over {cores} cores": sum(cost.cpu_s for cost in costs.values()) / cores,
        "kernels on the GPU": sum(cost.gpu_s for cost in costs.values()),
    }


# --- parts alone --------------------------------------------------------------------------------


class Recording:
    """An engine that keeps what it was asked and what it answered."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.pairs: list[tuple[Request, Sampled]] = []

    def generate_blocking(self, requests: Sequence[Request]) -> list[Sampled]:
        found = self.engine.generate_blocking(requests)
        self.pairs += zip(requests, found, strict=True)
        return found  # type: ignore[no-any-return]


class Replaying:
    """A generator that answers at once, with samples of earlier episodes."""

    name = "generator 0"

    def __init__(self, samples: Sequence[Sampled]) -> None:
        self._samples, self._rng = samples, np.random.default_rng(0)

    async def generate(self, requests: Sequence[Request]) -> list[Sampled]:
        return [self._samples[i] for i in self._rng.integers(len(self._samples), size=len(requests))]

    async def load_weights(self, version: int, weights: Any) -> str:
        return ""

    async def forget(self) -> None: ...

    async def close(self) -> None: ...

    def health(self) -> WorkerHealth:
        return WorkerHealth(self.name, None, 0.0, 0, is_alive=True, silent_s=0.0)


class Episodes:
    """Tasks over and over until so many episodes are played."""

    def __init__(self, jobs: Sequence[Job], params: SamplingParams) -> None:
        self.jobs, self.params, self.num_steps = list(jobs), params, 0
        self.num_left, self.whole = len(self.jobs), asyncio.Event()

    def take_next(self) -> PlannedEpisode | None:
        return PlannedEpisode(self.jobs.pop(), self.params) if self.jobs else None

    def report(self, played: PlayedEpisode) -> None:
        self.num_steps += int(played.trajectory.info["num_actions"])  # type: ignore[arg-type]
        self.num_left -= 1
        if self.num_left == 0:
            self.whole.set()


def alone(config: RunConfig, pace: Pace) -> dict[str, Cost]:
    """What each part costs when it has the machine to itself."""
    components = Components(config)
    try:
        size = config.workers.global_batch or config.train.tasks_per_update * config.train.group_size
        tasks = components.tasks(Split.TRAIN, config.train.num_tasks, 0)
        jobs = [Job(tasks[i % len(tasks)], f"g{i}", i) for i in range(size)]
        engine, params = Recording(components.engine), components.sampling_params(config.sampling.temperature)
        trajectories = (
            Rollout(components.envs, components.backend.player, engine).run(jobs, params).trajectories
        )
        num_steps = sum(int(t.info["num_actions"]) for t in trajectories)  # type: ignore[arg-type]
        trainer = repeated(lambda: components.trainer.update(trajectories), num_steps, config, pace)
        requests = [request for request, _ in engine.pairs]
        shape = config.workers.simulators
        num_envs = shape.num_workers * shape.env_batches * shape.batch_size
        batch = min(config.workers.generators.max_batch, num_envs)
        generator = repeated(lambda: sample(components, requests, batch), num_steps, config, pace)
        generator.wall_s /= config.workers.generators.num_workers
        samples = [one for _, one in engine.pairs]
        count = 8 * num_envs
        simulators = asyncio.run(
            simulate(config, components, samples, tasks, params, pace, num_episodes=count)
        )
    finally:
        components.close()
    return {"simulators": simulators, "generators": generator, "trainer": trainer}


def sample(components: Components, requests: Sequence[Request], size: int) -> None:
    components.engine.forget()
    for start in range(0, len(requests), size):
        components.engine.generate_blocking(requests[start : start + size])


def repeated(work: Callable[[], Any], num_steps: int, config: RunConfig, pace: Pace, times: int = 5) -> Cost:
    """The median of some times, after a first one that does not count."""
    work()
    walls, cpus, at = [], [], time.time()
    for _ in range(times):
        began, cpu = time.perf_counter(), time.process_time()
        work()
        if config.policy.device != "cpu":
            torch.cuda.synchronize()
        walls.append(time.perf_counter() - began)
        cpus.append(time.process_time() - cpu)
    slow = pace.between(at, time.time())
    gpu_s = 0.0 if config.policy.device == "cpu" else kernels(work)
    wall_s, cpu_s = float(np.median(walls)), float(np.median(cpus))
    return Cost(wall_s / num_steps, cpu_s / num_steps, gpu_s / num_steps, slow)


def kernels(work: Callable[[], Any]) -> float:
    """Seconds of kernels on the GPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages()) / 1e6


async def simulate(
    config: RunConfig,
    components: Components,
    samples: Any,
    tasks: Any,
    params: Any,
    pace: Pace,
    *,
    num_episodes: int,
) -> Cost:
    """The simulator processes at full tilt."""
    simulators = WorkerBuilder(config, components, check_workers(config)).make_simulators()
    try:
        await asyncio.gather(*(one.start() for one in simulators))  # type: ignore[attr-defined]
        cost = Cost(0.0, 0.0)
        for count in (num_episodes // 8, num_episodes):  # the first does not count
            jobs = [Job(tasks[i % len(tasks)], f"g{i}", i) for i in range(count)]
            feed = Episodes(jobs, params)
            queue = RequestQueue([Replaying(samples)], max_batch=1 << 20, max_wait_ms=0)
            driver = Driver(simulators, queue, components.backend.player, feed)
            began, cpu, at = time.perf_counter(), cpu_of(simulators), time.time()
            running = asyncio.ensure_future(driver.run())
            await feed.whole.wait()
            wall_s, cpu_s = time.perf_counter() - began, cpu_of(simulators) - cpu
            driver.stop()
            await running
            slow = pace.between(at, time.time())
            cost = Cost(wall_s / feed.num_steps, cpu_s / feed.num_steps, pace=slow)
        return cost
    finally:
        await asyncio.gather(*(one.close() for one in simulators))


def cpu_of(workers: Sequence[Any]) -> float:
    """Processor seconds of worker processes so far."""
    total = 0.0
    for worker in workers:
        fields = Path(f"/proc/{worker.read_health().pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


# --- whole runs ---------------------------------------------------------------------------------


def run(config: RunConfig, mode: str, pace: Pace) -> dict[str, Any]:
    """One run; its figures from the middle of it."""
    workers = config.workers.model_copy(update={"mode": mode})
    with tempfile.TemporaryDirectory() as place:
        changes = {"workers": workers, "folder": place, "name": mode}
        folder = train(config.model_copy(update=changes))
        file = folder / "metrics.jsonl"
        entries = [e for e in read_entries(file) if e.kind == "update"]
        began = file.stat().st_mtime - entries[-1].time_s  # when the run's clock stood at 0
    last = len(entries) - 1 - (workers.max_staleness + 1 if mode in ("train_async", "stream") else 0)
    assert last > NUM_SKIPPED, "train.num_updates is too small to measure in the middle of a run"
    first, end, middle = entries[NUM_SKIPPED - 1], entries[last], entries[NUM_SKIPPED : last + 1]
    throughput = (end.env_steps - first.env_steps) / (end.time_s - first.time_s)
    slow = pace.between(began + first.time_s, began + end.time_s)
    busy = {
        group: round(float(np.mean([e.values[f"{group}/busy"] for e in middle])), 3)
        for group in ("simulators", "generators", "trainers")
    }
    return {
        "mode": mode,
        "env_steps_per_s": round(throughput * slow, 1),
        "env_steps_per_s_by_the_clock": round(throughput, 1),
        "pace": round(slow, 3),
        "busy": busy,
        "mean_staleness": round(float(np.mean([e.values["staleness/mean"] for e in middle])), 2),
        "max_staleness": max(e.values["staleness/max"] for e in middle),
        "mean_batch": round(float(np.mean([e.values["generators/batch"] for e in middle])), 1),
    }


def show(rows: list[dict[str, Any]], costs: dict[str, Cost], limits: dict[str, float]) -> None:
    console = Console(width=120)
    alone = Table(title="parts alone: microseconds per environment transition")
    for name in ("", "own time", "processor", "GPU kernels"):
        alone.add_column(name, justify="right")
    for part, cost in costs.items():
        alone.add_row(part, *(f"{1e6 * value:.1f}" for value in (cost.wall_s, cost.cpu_s, cost.gpu_s)))
    console.print(alone)
    reason = max(limits, key=lambda name: limits[name])
    table = Table(title=f"bound {1 / limits[reason]:,.0f} env steps per second ({reason})")
    for name in ("", "env steps / s", "x sync", "of bound", *rows[0]["busy"], "staleness", "batch"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["mode"],
            f"{row['env_steps_per_s']:,.0f}",
            f"{row['times_sync']:.2f}",
            f"{row['of_bound']:.3f}",
            *(f"{100 * share:.0f} %" for share in row["busy"].values()),
            f"{row['mean_staleness']:.2f} (max {row['max_staleness']:.0f})",
            f"{row['mean_batch']:.1f}",
        )
    console.print(table)
