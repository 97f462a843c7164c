"""What asynchrony does to learning: success against environment steps, and against the clock.

Runs `studies/robots.toml` (Meta-World with a token and a flow head, `sync` and `stream`, three seeds) and
reads the curves of its runs. Against environment steps the two should be the same within the spread of seeds;
against the clock streaming should be ahead. Runs beside each other share the cores.

    python benchmarks/async_learning.py --workers 5       # sixteen cores; goes on where it stopped
    python benchmarks/async_learning.py --quick           # one seed, a short run of each; writes nothing
    python benchmarks/async_learning.py --read FOLDER     # only the figures, of a study that was run already
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.config.study import load_study, plan_runs
from stepwell.monitors.charts import Series, draw_line_chart
from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.summary import read_summary
from stepwell.monitors.svg import make_element, make_svg
from stepwell.studies.results import mean_curve
from stepwell.studies.study import run_study

STUDY = Path(__file__).parent.parent / "studies" / "robots.toml"
RESULTS = Path(__file__).parent / "results" / "async_learning"
MODES = ("sync", "stream")
WIDTH, HEIGHT = 720, 240


def runs_of(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Every finished run: its evaluations against environment steps and against seconds of training."""
    study = load_study(STUDY)
    found = []
    for run in plan_runs(study.shorten() if quick else study, STUDY.parent, folder / "runs"):
        place = folder / "runs" / run.name
        summary = read_summary(place)
        if summary is None or summary.status not in ("finished", "stopped_early"):
            continue
        entries = read_entries(place / "metrics.jsonl")
        evals = [entry for entry in entries if entry.kind == "eval"]
        updates = [entry for entry in entries if entry.kind == "update"]
        found.append(
            {
                "world": run.env,
                "mode": run.variant,
                "seed": run.seed,
                "steps": [entry.env_steps for entry in evals],
                "seconds": [round(entry.time_s - evals[0].time_s, 2) for entry in evals],
                "success": [entry.values["success"] for entry in evals],
                "success in training, sampled": [round(e.values["success"], 3) for e in updates],
                "staleness": max((e.values.get("staleness/max", 0.0) for e in updates), default=0.0),
                "machine": summary.machine,
            }
        )
    return found


def level_time(run: dict[str, Any], level: float) -> float | None:
    """Seconds until held-out success first was at `level`."""
    return next(
        (s for s, height in zip(run["seconds"], run["success"], strict=True) if height >= level), None
    )


def compared(runs: Sequence[dict[str, Any]], world: str) -> dict[str, Any]:
    """One environment in figures."""
    by_mode = {mode: [run for run in runs if (run["world"], run["mode"]) == (world, mode)] for mode in MODES}
    ends = {mode: [run["success"][-1] for run in mine] for mode, mine in by_mode.items()}
    before = [run["success"][0] for run in runs if run["world"] == world]
    level = statistics.fmean(before) + 0.8 * (statistics.fmean(ends["sync"]) - statistics.fmean(before))
    result: dict[str, Any] = {"world": world, "level": round(level, 3)}
    for mode, mine in by_mode.items():
        steps_per_s = [run["steps"][-1] / run["seconds"][-1] for run in mine]
        result[mode] = {
            "num_seeds": len(mine),
            "before": round(statistics.fmean(run["success"][0] for run in mine), 3),
            "after": round(statistics.fmean(ends[mode]), 3),
            "spread": round(statistics.stdev(ends[mode]), 3) if len(mine) > 1 else None,
            "mean over steps": round(statistics.fmean(_mean_success(run) for run in mine), 3),
            "steps_per_s": round(statistics.fmean(steps_per_s)),
            "seconds to level": [level_time(run, level) for run in mine],  # of each seed
            "most versions behind": max(run["staleness"] for run in mine),
        }
    return result


def _mean_success(run: dict[str, Any]) -> float:
    """Mean height of the curve over environment steps."""
    steps, success = run["steps"], run["success"]
    areas = [
        (b - a) * (x + y) / 2 for a, b, x, y in zip(steps, steps[1:], success, success[1:], strict=False)
    ]
    return sum(areas) / max(steps[-1] - steps[0], 1)


def chart(runs: Sequence[dict[str, Any]], world: str, against: str) -> str:
    """Success of both modes against steps or seconds: mean, lowest and highest seed."""
    series = []
    for index, mode in enumerate(MODES):
        curves = [
            list(zip(run[against], run["success"], strict=True))
            for run in runs
            if (run["world"], run["mode"]) == (world, mode)
        ]
        band = mean_curve(curves)
        series.append(Series(mode, band["x"], band["mean"], band["low"], band["high"], color=index))
    title = f"held-out success in {world}"
    return draw_line_chart(
        series, title=title, x_label=against, width=WIDTH, height=HEIGHT, y_range=(0, 1), legend=True
    )


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(
        "world", "mode", "seeds", "before", "after", "over steps", "steps/s", "s to level", "behind"
    )
    for row in rows:
        for mode in MODES:
            mine = row[mode]
            spread = "" if mine["spread"] is None else f" ± {mine['spread']:.3f}"
            cells = [mine["num_seeds"], mine["before"], f"{mine['after']}{spread}", mine["mean over steps"]]
            times = ", ".join("never" if time is None else f"{time:.0f}" for time in mine["seconds to level"])
            cells += [mine["steps_per_s"], times, mine["most versions behind"]]
            table.add_row(row["world"], mode, *map(str, cells))
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--workers", type=int, default=1, help="runs side by side; each uses three to four cores"
    )
    parser.add_argument("--limit-s", type=float, help="save and stop after this time")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--read", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    folder = args.read
    if folder is None:
        options = {"quick": args.quick, "workers": args.workers, "limit_s": args.limit_s}
        folder = run_study(
            STUDY, command="python benchmarks/async_learning.py", console=Console(), **options
        ).folder
    runs = runs_of(folder, args.quick)
    worlds = list(dict.fromkeys(run["world"] for run in runs))
    whole = [w for w in worlds if all(any((r["world"], r["mode"]) == (w, m) for r in runs) for m in MODES)]
    rows = [compared(runs, world) for world in whole]
    show(rows)
    if args.quick or not rows:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "results.json").write_text(json.dumps({"rows": rows, "runs": runs}, indent=1) + "\n")
    for world in whole:
        panels = [make_element("g", chart(runs, world, x), transform=f"translate(0 {i * HEIGHT})")
                  for i, x in enumerate(("steps", "seconds"))]  # fmt: skip
        (RESULTS / f"{world}.svg").write_text(make_svg(WIDTH, 2 * HEIGHT, f"{world}: success", panels))


if __name__ == "__main__":
    main()
