"""The demo for several seeds: held-out success before and after, curves and baselines, in one file.

python benchmarks/demo_seeds.py                     three seeds, one after the other
python benchmarks/demo_seeds.py --parallel 3        side by side, two cores each (taskset)
python benchmarks/demo_seeds.py --one-thread --seeds 0 1 2 3 --name x86_one_thread
                                                    the same training on one thread, without the baselines
python benchmarks/demo_seeds.py --from RUN [RUN …]  of runs that were made already
DNNL_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/demo_seeds.py --name avx2

The last one computes as an x86 CPU without AVX-512 and bfloat16 does; its result has a name of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from stepwell.config.loading import load_config
from stepwell.monitors import LogEntry
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.summary import read_summary
from stepwell.pool import open_pool
from stepwell.pool.credit_reading import list_step_credit, read_update_credit
from stepwell.runs.build.recipe import resolve_recipe
from stepwell.training.credit_measures import compute_explained_variance

RESULTS = Path(__file__).parent / "results"
FLAGS = ("DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
CORES_PER_DEMO = 2
LEARNING = (0.2, 0.9)


def describe_run(folder: Path) -> dict[str, Any]:
    """One run in figures."""
    summary = read_summary(folder)
    assert summary is not None, f"{folder} has no summary.json; is it the folder of a finished run?"
    entries = read_entries(folder / "metrics.jsonl")
    credit = resolve_recipe(load_config(folder / "config.toml").recipe).credit
    assert credit is not None, "the demo's recipe has credit"
    gamma = float(credit.kwargs["gamma"])
    return {
        "seed": summary.seed,
        "success_before": summary.success_before,
        "success_after": summary.success_after,
        "env_steps": summary.env_steps,
        "wall_s": summary.wall_s,
        "decoding": summary.decoding,
        "num_held_out": None if summary.after is None else summary.after.num_tasks,
        "baselines": {score.name: score.success for score in summary.baselines},
        "explained_variance": measure_explained(folder, entries, gamma),
        "curve": [
            {"update": e.update, "env_steps": e.env_steps, "success": e.values["success"]}
            for e in entries
            if e.kind == "eval"
        ],
        "machine": summary.machine,
        "environment": {name: os.environ[name] for name in FLAGS if name in os.environ},
    }


def measure_explained(folder: Path, entries: list[LogEntry], gamma: float) -> dict[str, float | None]:
    """The share of variance that the critic explains, mean over the updates that still learn.

    These are the updates in which 0.2 to 0.9 of the episodes succeed. When all of them do, returns hardly
    differ, and there is nothing to explain. `targets` is what the run itself reports: with lambda below 1 its
    targets hold values of the critic. `returns` compares the same values with the discounted sum of what the
    episode really got, so that runs with different lambda can be compared.
    """
    low, high = LEARNING
    learning = {
        entry.update: entry.values["explained_variance"]
        for entry in entries
        if "explained_variance" in entry.values and low <= entry.values["success"] <= high
    }
    if not learning:
        return {"targets": None, "returns": None}
    with open_pool(folder / "pool") as pool:
        rewards = {t.id: [float(step.reward or 0.0) for step in t.steps] for t in pool.trajectories()}
    found = [_explain_returns(folder, update, rewards, gamma) for update in learning]
    return {"targets": mean(learning.values()), "returns": mean(found)}


def _explain_returns(folder: Path, update: int, rewards: dict[str, list[float]], gamma: float) -> float:
    values, returns = [], []
    for record in read_update_credit(folder, update):
        values += [step.value for step in list_step_credit(record)]
        total, seen = 0.0, []
        for reward in reversed(rewards[record.trajectory]):
            total = reward + gamma * total
            seen.append(total)
        returns += seen[::-1]
    return float(compute_explained_variance(torch.tensor(values), torch.tensor(returns)))


def run_seeds(seeds: list[int], folder: Path, parallel: int, *, one_thread: bool = False) -> list[Path]:
    """The demo of each seed in a process of its own, so many at a time, each on cores of its own."""
    num_cores = 1 if one_thread else CORES_PER_DEMO
    places = queue.SimpleQueue[int]()
    for place in range(parallel):
        places.put(place)

    def run_one(seed: int) -> Path:
        place, own = places.get(), folder / f"demo-seed{seed}-{time.time_ns()}"
        cores = range(place * num_cores, (place + 1) * num_cores)
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if parallel > 1 else []
        demo = ["demo", "--seed", str(seed), "--folder", str(own)]
        train = ["train", "demo", "num_threads=1", f"seed={seed}", f"folder={own}"]
        command = [*pinned, sys.executable, "-m", "stepwell", *(train if one_thread else demo)]
        subprocess.run(command, check=True)
        places.put(place)
        return next(path.parent for path in own.glob("*/summary.json"))

    needed = parallel * num_cores
    if parallel > 1 and needed > (os.cpu_count() or 1):
        raise SystemExit(f"--parallel {parallel} needs {needed} cores, there are {os.cpu_count()}")
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(run_one, seeds))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--from", dest="runs", type=Path, nargs="+", help="folders of runs made already")
    parser.add_argument("--parallel", type=int, default=1, help="so many seeds at a time")
    parser.add_argument("--one-thread", action="store_true", help="train on one thread, no baselines")
    parser.add_argument("--name", default="", help="added to the name of the result")
    args = parser.parse_args()
    folders = args.runs or run_seeds(args.seeds, args.folder, args.parallel, one_thread=args.one_thread)
    results = [describe_run(folder) for folder in folders]
    for result in results:
        print(
            f"seed {result['seed']}: {result['success_before']:.3f} -> {result['success_after']:.3f} in "
            f"{result['wall_s']:.0f} s, {result['env_steps']:,} environment steps  {result['baselines']}"
        )
    name = "_".join(["demo_seeds", *([args.name] if args.name else [])])
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
