"""Where an update of `frozenlake-easy` spends its time, and what grouping pieces of attention gained.

    python benchmarks/demo_profile.py            a minute on one core

One table for the rollout, one for the update; then the update again with every run of the prefix
tree attended to by itself and every short shared prefix a branch of its own, as it once was.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from stepwell.config.loading import load_config
from stepwell.core import Split
from stepwell.packing import segments_cpu
from stepwell.rollout import Job
from stepwell.runs.build.components import Components
from stepwell.training import batch, imitate

RESULT = Path(__file__).parent / "results" / "demo_profile.json"
KINDS = {
    "attention, with its gathers": (
        "flash_attention",
        "SegmentAttention",
        "index_copy",
        "aten::index",
        "lerp",
        "logaddexp",
    ),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul"),
}


def prepared(num_demos: int) -> tuple[Components, list[Job]]:
    """The preset's parts after a short warm start, and the jobs of one update."""
    config = load_config("frozenlake-easy")
    components = Components(config)
    shown = components.play_demonstrations(num_demos, config.warm_start.noise, 0)
    for _ in imitate(components.policy, shown, config.warm_start.model_copy(update={"epochs": 1}), 0):
        pass
    components.engine.load_weights(1, components.policy.model_weights())
    train = config.train
    tasks = components.tasks(Split.TRAIN, train.tasks_per_update, 0)
    jobs = [Job(task, str(i), 7 * i + k) for i, task in enumerate(tasks) for k in range(train.group_size)]
    return components, jobs


def timed(call: Any, repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return median(times)


def by_kind(update: Any) -> dict[str, float]:
    """Seconds of an update's operations by kind."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        update()
    seconds = dict.fromkeys([*KINDS, "everything else"], 0.0)
    for event in seen.key_averages():
        kind = next(
            (k for k, words in KINDS.items() if any(w in event.key for w in words)), "everything else"
        )
        seconds[kind] += event.self_cpu_time_total / 1e6
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    components, jobs = prepared(2048)

    def roll() -> list[Any]:
        components.engine.forget()
        return components.runner.rollout.run(jobs, components.sampling_params(1.0)).trajectories

    rollout_s = timed(roll, args.repeats)
    trajectories = roll()
    engine_s = max(t.timings["engine_s"] for t in trajectories)
    update_s = timed(lambda: components.trainer.update(trajectories), args.repeats)
    kinds = by_kind(lambda: components.trainer.update(trajectories))
    grouped, least = segments_cpu._pad_segments, batch.MIN_RUN
    segments_cpu._pad_segments = lambda counts: None  # type: ignore[assignment]
    batch.MIN_RUN = 1
    before_s = timed(lambda: components.trainer.update(trajectories), args.repeats)
    segments_cpu._pad_segments, batch.MIN_RUN = grouped, least
    components.close()

    num_steps = sum(len(t.steps) for t in trajectories)
    print(f"{len(trajectories)} episodes, {num_steps} turns, {args.threads} thread(s)")
    print(f"rollout            {rollout_s:.3f} s   of which the engine {engine_s:.3f} s in this one")
    print(f"update             {update_s:.3f} s")
    total = sum(kinds.values())
    for kind, seconds in kinds.items():
        print(f"  {kind:<28} {seconds / total:5.1%}")
    print(f"update, pieces apart {before_s:.3f} s: now {before_s / update_s:.2f} times as fast")
    result = {
        "episodes": len(trajectories),
        "turns": num_steps,
        "threads": args.threads,
        "rollout_s": rollout_s,
        "engine_s": engine_s,
        "update_s": update_s,
        "update_shares": {kind: seconds / total for kind, seconds in kinds.items()},
        "update_pieces_apart_s": before_s,
        "machine": {"processor": platform.processor() or platform.machine(), "torch": torch.__version__},
    }
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
