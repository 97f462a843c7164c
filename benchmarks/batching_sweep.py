"""The dynamic batcher's two bounds: throughput over the largest batch and the longest wait.

Modelled devices in virtual time (`stepwell.workers.modelled`): six simulators with two environment batches
of eight each, and two generators four fifths of whose time per call is there whatever the size. Batches that
are too small waste that; waits that are too long leave simulators without work. While generators are busy
slots gather by themselves, so that the rise over the wait is small and its fall is not.

    python benchmarks/batching_sweep.py             # the table, results/batching_sweep.json and .svg
    python benchmarks/batching_sweep.py --quick     # a tenth of the updates, no files
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stepwell.monitors.charts import Series, draw_line_chart
from stepwell.workers.modelled import ModelledHardware, run_modelled

RESULT = Path(__file__).parent / "results" / "batching_sweep.json"
ENV_BATCH = 8
MODEL = ModelledHardware(
    simulator=22.0,
    generator=9.0,
    trainer=0.0,
    sigma=0.5,
    num_envs=96,
    num_simulators=6,
    env_batches=2,
    num_generators=2,
    generator_fixed=0.8,
    turns=(10, 10),
    global_batch=96,
    max_staleness=50,
)
BATCHES = (1, 2, 3, 4, 6, 9, 12)
WAITS = (0.0, 0.5, 1.0, 2.0, 4.0, 6.0, 9.0, 13.0, 20.0, 40.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    num_updates = max(args.updates // 10, 3) if args.quick else args.updates
    rows = [
        {
            "max_batches": count,
            "max_batch": count * ENV_BATCH,
            "max_wait": wait,
            **measure(count, wait, num_updates),
        }
        for count in BATCHES
        for wait in WAITS
    ]
    show(rows)
    if not args.quick and not args.no_write:
        result = {"model": asdict(MODEL), "num_updates": num_updates, "rows": rows}
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        RESULT.with_suffix(".svg").write_text(plot(rows))


def measure(count: int, wait: float, num_updates: int) -> dict[str, float]:
    run = run_modelled(replace(MODEL, max_batch=count * ENV_BATCH, max_wait=wait), "stream", num_updates)
    return {
        "env_steps_per_unit": round(run.throughput, 4),
        "mean_batch": round(run.mean_batch, 2),
        "generators_busy": round(run.busy["generators"], 3),
        "simulators_busy": round(run.busy["simulators"], 3),
    }


def show(rows: list[dict[str, float]]) -> None:
    table = Table(title="env steps per unit of time: largest batch (in environment batches) x longest wait")
    table.add_column("max batches", justify="right")
    for wait in WAITS:
        table.add_column(f"{wait:g}", justify="right")
    for count in BATCHES:
        mine = [row["env_steps_per_unit"] for row in rows if row["max_batches"] == count]
        best = max(mine)
        table.add_row(str(count), *(f"[bold]{v:.3f}[/]" if v == best else f"{v:.3f}" for v in mine))
    Console(width=120).print(table)


def plot(rows: list[dict[str, float]]) -> str:
    """One line per largest batch, over the wait."""
    series = []
    for number, count in enumerate(BATCHES):
        mine = [row for row in rows if row["max_batches"] == count]
        x, y = ([row[name] for row in mine] for name in ("max_wait", "env_steps_per_unit"))
        series.append(Series(f"at most {count}", x, y, color=number, marks=True))
    return draw_line_chart(
        series,
        title="throughput over the longest wait, by the largest batch",
        x_label="max_wait (units)",
        y_label="env steps per unit",
    )


if __name__ == "__main__":
    main()
