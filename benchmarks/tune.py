"""What `workers.tune` is worth: from bad settings, against the best of a sweep.

    python benchmarks/tune.py                # modelled runs over many devices -> results/planner/tune.json
    python benchmarks/tune.py --real wide    # asynchronous runs of real processes that wait; or --real narrow

Modelled: for each set of devices all combinations of batch, wait and shard rule run for a few updates; the
best counts. Then runs that start from bad settings are tuned. Compared are the throughput of the settings at
the end with the best of the sweep, and the throughput of the whole tuned run, trials included, with that of
the start.

Real: simulator and generator processes that sleep (`planner_workers.py`), the real driver and queue, in real
time. `wide` has room for batches of 32 and starts with batches of 4; `narrow` has 16 environments, and starts
with a wait of 40 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from stepwell.core import Task
from stepwell.rollout import Job
from stepwell.workers import ProcessGenerator, ProcessSimulator
from stepwell.workers.modelled import ModelledHardware, run_modelled
from stepwell.workers.pipeline import ModelledRun, PipelineWorkers, run_pipeline
from stepwell.workers.tuning import QueueSettings, Tuner, tune_queue

HERE = Path(__file__).parent
RESULT = HERE / "results" / "planner" / "tune.json"
BASE = ModelledHardware(
    trainer=0.0,
    sigma=0.3,
    num_envs=32,
    num_simulators=4,
    env_batches=2,
    turns=(8, 8),
    global_batch=32,
    max_staleness=50,
)
DEVICES = {
    "costly calls, one generator": replace(BASE, generator_fixed=0.8),
    "cheap calls, one generator": replace(BASE, generator_fixed=0.1),
    "slow generator": replace(BASE, generator=30.0, generator_fixed=0.5),
    "costly calls, two generators": replace(BASE, num_generators=2, generator_fixed=0.8),
    "cheap calls, two generators": replace(BASE, num_generators=2, generator_fixed=0.1, generator=18.0),
    "fast simulators, two generators": replace(BASE, num_generators=2, simulator=6.0, generator_fixed=0.5),
}
BAD = (
    QueueSettings(1, 0.0),
    QueueSettings(32, 40_000.0),
    QueueSettings(4, 10_000.0),
)
BATCHES, WAITS = (4, 8, 16, 32), (0.0, 1.0, 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", choices=("wide", "narrow"), help="real processes, with these devices")
    parser.add_argument("--updates", type=int, default=24, help="of a tuned run")
    args = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result: dict[str, Any] = {}
    if args.real:
        result["real"] = known.get("real", {}) | {args.real: asyncio.run(tune_real(args.real))}
    else:
        rows = [row for name, model in DEVICES.items() for row in tune_modelled(name, model, args.updates)]
        shares = [row["of_best"] for row in rows]
        result |= {
            "modelled": rows,
            "smallest_of_best": min(shares),
            "at_least_0.95": sum(s >= 0.95 for s in shares),
        }
        print(
            f"{sum(s >= 0.95 for s in shares)} of {len(shares)} at 0.95 or more; smallest {min(shares):.3f}"
        )
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(known | result, indent=2) + "\n")


def use_settings(model: ModelledHardware, settings: QueueSettings) -> ModelledHardware:
    """The same devices with other settings of the queue."""
    return replace(
        model, max_batch=settings.max_batch, max_wait=settings.max_wait_ms / 1000, shard=settings.shard
    )


def measure(model: ModelledHardware, num_updates: int = 48) -> float:
    return run_modelled(model, "stream", num_updates).measure_middle(1, 1)


def tune_modelled(name: str, model: ModelledHardware, num_updates: int) -> list[dict[str, Any]]:
    """The sweep, then tuned runs from each bad start."""
    shards = ("none", "even") if model.num_generators > 1 else ("none",)
    swept = {
        QueueSettings(batch, 1000 * wait, shard): measure(
            use_settings(model, QueueSettings(batch, 1000 * wait, shard))
        )
        for batch, wait, shard in product(BATCHES, WAITS, shards)
    }
    best = max(swept, key=lambda settings: swept[settings])
    rows = []
    for bad in BAD:
        start = use_settings(model, bad)
        tuner = Tuner(bad, model.num_envs, model.num_generators)
        run = run_modelled(
            start,
            "stream",
            num_updates,
            on_start=lambda driver, queue, tuner=tuner: tune_queue(queue, driver, tuner, poll_s=0.5),
        )
        end, before = measure(use_settings(model, tuner.best)), measure(start)
        rows.append(
            {
                "devices": name,
                "start": vars_of(bad),
                "end": vars_of(tuner.best),
                "sweep": vars_of(best),
                "of_best_at_start": round(before / swept[best], 3),
                "of_best": round(end / swept[best], 3),
                "whole_run_over_start": round(run.throughput / before, 3),
                "num_windows": tuner.num_windows,
            }
        )
        print(rows[-1], flush=True)
    return rows


def vars_of(settings: QueueSettings) -> dict[str, Any]:
    return {"max_batch": settings.max_batch, "max_wait_ms": settings.max_wait_ms, "shard": settings.shard}


# --- real processes -----------------------------------------------------------------------------


async def tune_real(name: str) -> dict[str, Any]:
    """A sweep of short runs, then a tuned run from bad settings, then its end settings once more."""
    from planner_reality import WaitingCase

    from stepwell.runs.machine import describe_machine

    load = os.getloadavg()[0]
    base = WaitingCase("stream", update_s=0.05, max_staleness=8, updates=7)
    if name == "wide":
        case = replace(base, env_batches=4, global_batch=64, fixed_s=0.06, each_s=0.0005)
        sweep, bad = ((4, 0.0), (8, 0.0), (16, 0.0), (32, 0.0), (32, 40.0)), QueueSettings(4, 0.0)
    else:
        case = replace(base, global_batch=32, fixed_s=0.03)
        sweep, bad = ((4, 0.0), (8, 0.0), (16, 0.0), (16, 10.0), (16, 40.0)), QueueSettings(4, 40.0)
    swept = {}
    for batch, wait in sweep:
        settings = QueueSettings(batch, wait)
        run, _ = await run_waiting(case, settings)
        swept[settings] = run.measure_middle(2, 0)
        print(f"sweep {settings.describe()}: {swept[settings]:.1f} turns/s", flush=True)
    best = max(swept, key=lambda settings: swept[settings])
    if bad in swept:
        at_start = swept[bad]
    else:
        start, _ = await run_waiting(case, bad)
        at_start = start.measure_middle(2, 0)
    run, tuner = await run_waiting(replace(case, updates=40 if name == "wide" else 56), bad, tunes=True)
    assert tuner is not None
    end, _ = await run_waiting(case, tuner.best)
    found = {
        "swept": [vars_of(one) | {"turns_per_s": round(rate, 1)} for one, rate in swept.items()],
        "start": vars_of(bad),
        "end": vars_of(tuner.best),
        "sweep": vars_of(best),
        "of_best_at_start": round(at_start / swept[best], 3),
        "of_best": round(end.measure_middle(2, 0) / swept[best], 3),
        "whole_run_over_start": round(run.throughput / at_start, 3),
        "last_third_of_best": round(run.measure_middle(2 * len(run.marks) // 3, 0) / swept[best], 3),
        "num_windows": tuner.num_windows,
        "seconds": round(run.elapsed, 1),
        "load_before": round(load, 2),
        "machine": describe_machine(),
    }
    print(json.dumps(found, indent=2))
    return found


async def run_waiting(
    case: Any, settings: QueueSettings, *, tunes: bool = False
) -> tuple[ModelledRun, Tuner | None]:
    """A run of real processes that wait, with these settings of the queue."""
    from planner_reality import TURNS, GoingPlayer, SleepingTrainer, build_hardware

    from stepwell.config.profile import PipelineProfile

    module = HERE / "planner_workers.py"
    options = {"step_s": case.step_s, "turns": TURNS}
    engine = {"fixed_s": case.fixed_s, "each_s": case.each_s}
    simulators = [
        ProcessSimulator(f"simulator {i}", f"{module}:WaitingEnv", options, case.env_batches, case.batch_size)
        for i in range(case.simulators)
    ]
    generators = [ProcessGenerator("generator 0", f"{module}:build_waiting_engine", engine)]
    hardware = build_hardware(
        replace(case, max_batch=settings.max_batch, max_wait_ms=settings.max_wait_ms), PipelineProfile()
    )
    tuner = Tuner(settings, hardware.num_envs) if tunes else None
    try:
        await asyncio.gather(*(worker.start() for worker in (*simulators, *generators)))
        run = await run_pipeline(
            PipelineWorkers(simulators, generators, SleepingTrainer(case.update_s)),
            hardware,
            case.mode,
            case.updates,
            player=GoingPlayer(),
            make_group=lambda number: [Job(Task("waiting", {"seed": number}), f"g{number}", number)],
            stale_data="weight",
            on_start=None if tuner is None else lambda driver, queue: tune_queue(queue, driver, tuner),
        )
    finally:
        await asyncio.gather(*(worker.close() for worker in (*simulators, *generators)))
    return run, tuner


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
