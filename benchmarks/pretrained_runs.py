"""SmolLM2 in our environments: figures of runs, and their curves in the household.

    python benchmarks/pretrained_runs.py add runs/NAME... --origin "preset, three runs side by side"
    python benchmarks/pretrained_runs.py draw

`add` reads `metrics.jsonl` of run folders, finished or not, and appends to `results/pretrained/runs.json`. Of
runs with one name `draw` takes the last.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.core.disk import atomic_write
from stepwell.monitors import jsonl
from stepwell.monitors.charts import Series, draw_line_chart
from stepwell.monitors.svg import make_element, make_svg, make_text

FOLDER = Path(__file__).parent / "results" / "pretrained"
UPDATES = (1, 4, 8, 16, 24, 32, 40, 48)
METRICS = ("explained_variance", "update_kl", "clip_share")
TIMES = ("time/rollout_s", "time/update_s")
ARMS = {  # runs are NAME-seedN
    "household-smollm2": "PPO: the preset with 32 updates",
    "household-smollm2-40": "PPO: the preset before, 40 updates at 3e-5",
    "household-smollm2-48": "PPO: the preset as it stands, 48 updates at 5e-5",
    "household-ppo": "PPO, runs of the study",
    "household-steppo": "StepPO",
    "household-steppo-token-ratio": "StepPO with a ratio by token",
    "household-steppo-fast-critic": "StepPO, critic three times as fast, alone for 5 updates",
}
WIDTH, HEIGHT, TITLE = 860, 240, 26


def read_run(folder: Path, origin: str) -> dict[str, Any]:
    """The figures of one run folder."""
    entries = jsonl.read_entries(folder / jsonl.FILE_NAME)
    updates = [entry for entry in entries if entry.kind == "update"]
    evals = [entry for entry in entries if entry.kind == "eval" and "success" in entry.values]
    bounds = ("success", "low", "high")
    return {
        "run": folder.name,
        "updates": max((entry.update for entry in updates), default=0),
        "held_out": [
            {"update": e.update}
            | {name: e.values[name] for name in bounds if name in e.values}
            | {"seconds": round(e.time_s, 1)}
            for e in evals
        ],
        **{
            name: {
                str(e.update): round(e.values[name], 4)
                for e in updates
                if e.update in UPDATES and name in e.values
            }
            for name in METRICS
        },
        "seconds_of_an_update": {
            name: statistics.median(e.values[name] for e in updates if name in e.values)
            for name in TIMES
            if any(name in e.values for e in updates)
        },
        "from": origin,
    }


def draw_curves(runs: Sequence[dict[str, Any]]) -> str:
    """One SVG image: a panel per arm, a line per seed."""
    last = {run["run"]: run for run in runs}
    parts = []
    for arm, title in ARMS.items():
        seeds = {name.removeprefix(f"{arm}-seed"): run for name, run in last.items() if _has_arm(name, arm)}
        series = [
            Series(
                f"seed {seed}",
                [float(point["update"]) for point in run["held_out"]],
                [float(point["success"]) for point in run["held_out"]],
                color=index,
                marks=True,
            )
            for index, (seed, run) in enumerate(sorted(seeds.items()))
        ]
        if not series:
            continue
        chart = draw_line_chart(
            series,
            title=title,
            x_label="updates",
            width=WIDTH,
            height=HEIGHT,
            x_range=(0.0, 48.0),
            y_range=(0.0, 1.0),
            legend=True,
        )
        top = (len(parts) // 2) * (HEIGHT + TITLE)
        parts.append(make_text(4, top + 15, title, more="font-weight:600;"))
        parts.append(make_element("g", chart, transform=f"translate(0 {top + TITLE})"))
    height = (len(parts) // 2) * (HEIGHT + TITLE)
    return make_svg(WIDTH, height, "held-out success in the household over updates", parts)


def _has_arm(name: str, arm: str) -> bool:
    return name.rpartition("-seed")[0] == arm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["add", "draw"])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--origin", default="", help="what ran, and beside what")
    args = parser.parse_args()
    file = FOLDER / "runs.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["runs"] += [read_run(folder, args.origin) for folder in args.folders]
    if args.action == "add":
        atomic_write(file, json.dumps(content, indent=1) + "\n")
    atomic_write(FOLDER / "curves-household.svg", draw_curves(content["runs"]))


if __name__ == "__main__":
    main()
