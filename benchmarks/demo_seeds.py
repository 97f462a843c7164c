"""The demo for several seeds: held-out success before and after, curves and baselines, in one file.

python benchmarks/demo_seeds.py                     three seeds, one after the other
python benchmarks/demo_seeds.py --parallel 3        side by side, two cores each (taskset)
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

from stepwell.monitors import LogEntry
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.summary import read_summary

RESULTS = Path(__file__).parent / "results"
FLAGS = ("DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
CORES_PER_DEMO = 2


def describe_run(folder: Path) -> dict[str, Any]:
    """One run in figures."""
    summary = read_summary(folder)
    assert summary is not None, f"{folder} has no summary.json; is it the folder of a finished run?"
    entries = read_entries(folder / "metrics.jsonl")
    return {
        "seed": summary.seed,
        "success_before": summary.success_before,
        "success_after": summary.success_after,
        "env_steps": summary.env_steps,
        "wall_s": summary.wall_s,
        "decoding": summary.decoding,
        "num_held_out": None if summary.after is None else summary.after.num_tasks,
        "baselines": {score.name: score.success for score in summary.baselines},
        "explained_variance": explained(entries),
        "curve": [
            {"update": e.update, "env_steps": e.env_steps, "success": e.values["success"]}
            for e in entries
            if e.kind == "eval"
        ],
        "machine": summary.machine,
        "environment": {name: os.environ[name] for name in FLAGS if name in os.environ},
    }


def explained(entries: list[LogEntry]) -> float | None:
    """The share of returns' variance that the critic explains, mean over the last tenth of the updates."""
    found = [e.values["explained_variance"] for e in entries if "explained_variance" in e.values]
    return mean(found[-max(1, len(found) // 10) :]) if found else None


def run_seeds(seeds: list[int], folder: Path, parallel: int) -> list[Path]:
    """The demo of each seed in a process of its own, so many at a time, each on cores of its own."""
    places = queue.SimpleQueue[int]()
    for place in range(parallel):
        places.put(place)

    def run_one(seed: int) -> Path:
        place, own = places.get(), folder / f"demo-seed{seed}-{time.time_ns()}"
        cores = range(place * CORES_PER_DEMO, (place + 1) * CORES_PER_DEMO)
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if parallel > 1 else []
        command = [*pinned, sys.executable, "-m", "stepwell", "demo", "--seed", str(seed)]
        subprocess.run([*command, "--folder", str(own)], check=True)
        places.put(place)
        return next(path.parent for path in own.glob("*/summary.json"))

    needed = parallel * CORES_PER_DEMO
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
    parser.add_argument("--name", default="", help="added to the name of the result")
    args = parser.parse_args()
    folders = args.runs or run_seeds(args.seeds, args.folder, args.parallel)
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
