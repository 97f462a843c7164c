"""The planner against reality: forecasts of runs that are then made.

    python benchmarks/planner_reality.py                      # this machine: waiting workers, and real runs
    python benchmarks/planner_reality.py --only waiting       # or --only real
    python benchmarks/planner_reality.py --only real --cases 0:6    # some of them; adds to the file's rows
    python benchmarks/planner_reality.py --device cuda        # six runs with the policy on a GPU

Waiting: real simulator and generator processes, real driver, queue and staleness rule, in real time; the
environment and the engine sleep (`planner_workers.py`), and so does the trainer. Their times are measured by
calls to one process of each kind, before the run.

Real: whole runs of `stepwell train` in processes. One profile per environment is measured as `stepwell plan`
does (`runs/planner/measurement.py`), in this process.

Throughput is taken between updates in the middle of a run, in turns per second. What is compared was never
used to make the forecast.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from stepwell.config.profile import GeneratorTimes, PipelineProfile, SimulatorTimes, TrainerTimes
from stepwell.core import Request, SamplingParams, Task, TokenState
from stepwell.rollout import Job
from stepwell.workers import ProcessGenerator, ProcessSimulator
from stepwell.workers.modelled import ModelledPlayer, run_modelled
from stepwell.workers.pipeline import PipelineWorkers, run_pipeline
from stepwell.workers.placement import DevicePlacement
from stepwell.workers.planned_hardware import PlannedHardware

HERE = Path(__file__).parent
FOLDER = HERE / "results" / "planner"
TURNS = 6
CORES = float(len(os.sched_getaffinity(0)))


@dataclass(frozen=True)
class WaitingCase:
    """Settings of a run with waiting workers."""

    mode: str
    simulators: int = 2
    env_batches: int = 2
    batch_size: int = 4
    generators: int = 1
    max_batch: int = 16
    max_wait_ms: float = 0.0
    shard: str = "none"
    step_s: float = 0.004
    spread: float = 0.0
    fixed_s: float = 0.02
    each_s: float = 0.001
    update_s: float = 0.25
    global_batch: int = 16
    max_staleness: int = 2
    updates: int = 10

    @property
    def label(self) -> str:
        default = WaitingCase("")
        changed = [
            f"{name} {value:g}" if not isinstance(value, str) else value
            for name, value in vars(self).items()
            if name != "mode" and value != getattr(default, name)
        ]
        return ", ".join([self.mode, *changed])


WAITING = (
    WaitingCase("sync"),
    WaitingCase("rollout_async"),
    WaitingCase("train_async"),
    WaitingCase("stream"),
    WaitingCase("stream", env_batches=1, batch_size=8),
    WaitingCase("stream", max_batch=4),
    WaitingCase("stream", max_wait_ms=40.0),
    WaitingCase("stream", spread=0.5),
    WaitingCase("stream", generators=2, shard="even", fixed_s=0.005, each_s=0.004),
    WaitingCase("stream", update_s=0.8, updates=6),
    WaitingCase("rollout_async", fixed_s=0.06, max_batch=8),
    WaitingCase("train_async", simulators=1, batch_size=8),
    WaitingCase("rollout_async", env_batches=4, batch_size=2),
)


class GoingPlayer(ModelledPlayer):
    """Records episodes without content, and acts with the one action there is."""

    def read_reply(self, sampled: Any) -> Any:
        return _GOING


@dataclass(frozen=True)
class _Going:
    actions: tuple[str, ...] = ("go",)


_GOING = _Going()


class SleepingTrainer:
    """Learns by waiting."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def update(self, num_steps: int, num_stale: int) -> None:
        await asyncio.sleep(self._seconds)

    async def copy_weights(self) -> None:
        """There are none."""

    async def send_weights(self, version: int, generators: Sequence[Any]) -> None:
        """Nothing travels but the version."""
        await asyncio.gather(*(generator.load_weights(version, {}) for generator in generators))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="of the policy in real runs: cpu or cuda")
    parser.add_argument("--only", choices=("waiting", "real"), help="one of the two kinds")
    parser.add_argument("--cases", type=read_slice, help="of the real runs, as FIRST:END")
    parser.add_argument("--name", default=None, help="of the result file; default: the device")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    began, load = time.perf_counter(), os.getloadavg()
    file = FOLDER / f"reality_{args.name or args.device}.json"
    is_part = args.cases is not None and file.exists()
    rows = json.loads(file.read_text())["rows"] if is_part else []
    for row in compare_cases(args.device, args.only, args.cases or slice(None)):
        rows = [*(one for one in rows if (one["kind"], one["label"]) != (row["kind"], row["label"])), row]
        result = summarize(rows, time.perf_counter() - began, load)
        if not args.no_write:  # after every case: what is measured stays if the rest is cut
            FOLDER.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["summary"], indent=2))


def read_slice(text: str) -> slice:
    first, end = text.split(":")
    return slice(int(first), int(end))


def compare_cases(device: str, only: str | None, chosen: slice) -> Iterator[dict[str, Any]]:
    """All cases of a device, of both kinds or of one."""
    if device == "cpu" and only != "real":
        yield from (asyncio.run(compare_waiting(case)) for case in WAITING)
    if only != "waiting":
        from planner_real_runs import compare_real_runs  # imports torch

        yield from compare_real_runs(device, chosen)


def summarize(rows: list[dict[str, Any]], seconds: float, load: tuple[float, ...]) -> dict[str, Any]:
    """The result file: the machine, the errors of all cases, and each case."""
    from stepwell.runs.machine import describe_machine

    kinds = sorted({row["kind"] for row in rows})
    summary = {
        **{kind: summarize_errors([row for row in rows if row["kind"] == kind]) for kind in kinds},
        "together": summarize_errors(rows),
        "seconds": round(seconds, 1),
        "load_before": [round(value, 2) for value in load],
        "cores": CORES,
    }
    return {"machine": describe_machine(), "summary": summary, "rows": rows}


def summarize_errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How far forecasts are off."""
    errors = [abs(row["error"]) for row in rows]
    return {
        "num_cases": len(rows),
        "median_error": round(median(errors), 4),
        "largest_error": round(max(errors), 4),
        "within_15_percent": sum(error <= 0.15 for error in errors),
    }


def make_row(kind: str, label: str, modelled: float, measured: float, **more: Any) -> dict[str, Any]:
    """One comparison, printed."""
    error = modelled / measured - 1
    print(
        f"{kind} {label}: modelled {modelled:.1f}, measured {measured:.1f} turns/s ({100 * error:+.1f} %)",
        flush=True,
    )
    return {
        "kind": kind,
        "label": label,
        "modelled": round(modelled, 2),
        "measured": round(measured, 2),
        "error": round(error, 4),
        **more,
    }


# --- waiting workers ----------------------------------------------------------------------------


async def compare_waiting(case: WaitingCase) -> dict[str, Any]:
    """A run with waiting workers, and its forecast from times that were measured before."""
    env = f"{HERE / 'planner_workers.py'}:WaitingEnv"
    options = {"step_s": case.step_s, "spread": case.spread, "turns": TURNS}
    factory = f"{HERE / 'planner_workers.py'}:build_waiting_engine"
    engine = {"fixed_s": case.fixed_s, "each_s": case.each_s}
    simulators = [
        ProcessSimulator(f"simulator {i}", env, options, case.env_batches, case.batch_size)
        for i in range(case.simulators)
    ]
    generators = [ProcessGenerator(f"generator {i}", factory, engine) for i in range(case.generators)]
    try:
        await asyncio.gather(*(worker.start() for worker in (*simulators, *generators)))
        profile = await measure_waiting(case, simulators[0], generators[0])
        hardware = build_hardware(case, profile)
        run = run_pipeline(
            PipelineWorkers(simulators, generators, SleepingTrainer(case.update_s)),
            hardware,
            case.mode,  # type: ignore[arg-type]
            case.updates,
            player=GoingPlayer(),
            make_group=lambda number: [Job(Task("waiting", {"seed": number}), f"g{number}", number)],
            stale_data="weight",
        )
        measured = (await run).measure_middle(2, 2)
    finally:
        await asyncio.gather(*(worker.close() for worker in (*simulators, *generators)))
    modelled = await asyncio.to_thread(run_modelled, hardware, case.mode, case.updates, stale_data="weight")  # type: ignore[arg-type]
    return make_row("waiting", case.label, modelled.measure_middle(2, 2), measured)


async def measure_waiting(case: WaitingCase, simulator: Any, generator: Any) -> PipelineProfile:
    """Times of one process of each kind, by calls to it."""
    places = list(range(case.batch_size))
    tasks = [Task("waiting", {"seed": i}) for i in places]
    step_s, reset_s = [], []
    for seed in range(3):
        began = time.perf_counter()
        await simulator.reset(0, places, tasks, [seed * 100 + i for i in places])
        reset_s.append((time.perf_counter() - began) / len(places))
        for _ in range(TURNS - 1):
            began = time.perf_counter()
            await simulator.step(0, places, [("go",)] * len(places))
            step_s.append((time.perf_counter() - began) / len(places))
    request = Request(TokenState(np.zeros(1, np.int32)), SamplingParams(), id="")
    points = []
    for size in (1, 4, 16):
        spent = []
        for _ in range(3):
            began = time.perf_counter()
            await generator.generate([request] * size)
            spent.append(time.perf_counter() - began)
        points.append((float(size), max(median(spent), points[-1][1] if points else 0.0)))
    spread = float(np.std(np.log(step_s))) * np.sqrt(case.batch_size) if case.spread else 0.0
    return PipelineProfile(
        simulator=SimulatorTimes(
            times=((1, mean(step_s)),), spread=float(spread), reset_s=median(reset_s), cores=0
        ),
        generator=GeneratorTimes(times=tuple(points), cores=0),
        trainer=TrainerTimes(cores=0),
        update_s=case.update_s,
        turns=(TURNS,),
    )


def build_hardware(case: WaitingCase, profile: PipelineProfile) -> PlannedHardware:
    """The modelled workers of a case; every one has its own hardware, because they only wait."""
    return PlannedHardware(
        num_envs=case.simulators * case.env_batches * case.batch_size,
        num_simulators=case.simulators,
        env_batches=case.env_batches,
        num_generators=case.generators,
        global_batch=case.global_batch,
        max_staleness=case.max_staleness,
        max_batch=case.max_batch,
        max_wait=case.max_wait_ms / 1000,
        shard=case.shard,
        profile=profile,
        placement=DevicePlacement(
            "colocated", ("cpu",) * case.simulators, ("cpu",) * case.generators, ("cpu",)
        ),
        cores=CORES,
    )


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
