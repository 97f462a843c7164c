"""Two commits' CPU speed in one run: a packed training step, and an update of `frozenlake-easy`.

    git worktree add ../before ea890e53
    python benchmarks/compare_commits.py --before ../before     # -> results/compare_commits_cpu.json

Each side runs in processes of its own, in turn (before, now, now, before, ...), with its own sources and its
own `packing_speed.py` and `demo_profile.py`. Compared is the processor time of the fastest of all rounds:
other programs only ever add to it. Weights, steps and settings are the same on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULT = HERE / "results" / "compare_commits_cpu.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="working tree of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each side")
    parser.add_argument("--repeats", type=int, default=4, help="of each measurement in a process")
    parser.add_argument("--measure", type=Path, help="measure this tree and print; used by the script itself")
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure_tree(options.measure, options.repeats)))
        return
    if options.before is None:
        parser.error("--before TREE is needed")
    trees = {"before": options.before.resolve(), "now": HERE.parent.resolve()}
    order = [side for i in range(options.rounds) for side in (trees if i % 2 == 0 else reversed(trees))]
    load, seen = os.getloadavg()[0], []
    for side in order:
        seen.append({"side": side, **run_side(trees[side], options.repeats)})
        print(seen[-1], flush=True)
    RESULT.write_text(json.dumps(summarize(trees, seen, load), indent=2) + "\n")


def run_side(tree: Path, repeats: int) -> dict[str, float]:
    """Measurements of a tree, in a process that imports its sources."""
    command = [sys.executable, __file__, "--measure", str(tree), "--repeats", str(repeats)]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_tree(tree: Path, repeats: int) -> dict[str, float]:
    """Seconds of the processor for a packed step of each size, a rollout and an update; one thread."""
    sys.path[0] = str(tree / "benchmarks")
    import demo_profile
    import packing_speed
    import torch

    import stepwell

    assert Path(stepwell.__file__).is_relative_to(tree.resolve()), stepwell.__file__
    torch.set_num_threads(1)
    seconds = {}
    model = packing_speed.build_model("tiny-5m")
    policy = packing_speed.build_policy(model, "tree")
    for size, lengths in packing_speed.SIZES.items():
        steps = packing_speed.build_steps(lengths, model.config.vocab_size)
        loss = packing_speed.Loss(steps, policy.device)
        seconds[f"packed step {size}"] = find_shortest(
            lambda steps=steps, loss=loss: packing_speed.packed_step(policy, steps, loss), repeats
        )
    components, jobs = demo_profile.prepared(256)

    def play() -> list[Any]:
        components.engine.forget()
        return list(components.runner.rollout.run(jobs, components.sampling_params(1.0)).trajectories)

    seconds["rollout"] = find_shortest(play, repeats)
    trajectories = play()
    seconds["turns"] = sum(len(trajectory.steps) for trajectory in trajectories)
    seconds["update"] = find_shortest(lambda: components.trainer.update(trajectories), repeats)
    components.close()
    return seconds


def find_shortest(call: Any, repeats: int) -> float:
    """Processor seconds of the fastest of some calls, after one that does not count."""
    call()
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        spent.append(time.process_time() - began)
    return min(spent)


def summarize(trees: dict[str, Path], seen: list[dict[str, Any]], load: float) -> dict[str, Any]:
    """The result: the fastest of each side, and how many times as long it takes now."""
    from stepwell.runs.machine import describe_machine

    best = {
        side: {
            name: min(row[name] for row in seen if row["side"] == side)
            for name in seen[0]
            if name not in ("side", "turns")
        }
        for side in trees
    }
    turns = {side: {row["turns"] for row in seen if row["side"] == side}.pop() for side in trees}
    ratios = {name: best["now"][name] / best["before"][name] for name in best["now"]}
    per_turn = ratios["rollout"] * turns["before"] / turns["now"]
    result = {
        "machine": describe_machine(),
        "threads_used": 1,
        "load_before": round(load, 2),
        "commits": {side: read_commit(tree) for side, tree in trees.items()},
        "fastest_cpu_s": best,
        "turns": turns,
        "now_over_before": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "rollout_per_turn_over_before": round(per_turn, 3),
        "rounds": seen,
    }
    print(json.dumps({key: result[key] for key in ("fastest_cpu_s", "now_over_before")}, indent=2))
    return result


def read_commit(tree: Path) -> str:
    found = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


if __name__ == "__main__":
    main()
