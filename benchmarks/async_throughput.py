"""What asynchrony is worth: environment steps per unit of time, by how far the groups overlap.

Modelled devices (default): the real driver, request queue and staleness rule in virtual time. A turn of all
32 environments takes the simulators 22 units, the generator 9 (a quarter of it fixed per call), the trainer
15, log-normal with sigma 0.5; one draw per environment (simulators), per call (generator), per microbatch of
32 steps (trainer). `sync` waits for the slowest simulator in every turn and calls the generator once for all
32: with the same four simulator processes it cannot be parallelised further. Four environment batches per
simulator are the default because generation must be hidden behind more than one of them (see the sweep). The
bound is the throughput of the slowest group when it is timed alone. Throughput is over the whole run, from
the first reset to the end of the last update.

    python benchmarks/async_throughput.py                     # the tables, and results/async_throughput.json
    python benchmarks/async_throughput.py --quick             # a tenth of the updates, no file

Real worlds (`--real`): whole runs of `stepwell train` in each mode with processes, on this machine. The
parts are timed alone first; the bound is the larger of the slowest group's own time, the processor time of
all parts over the cores, and the time of the kernels of all parts on the GPU. Everything after
`--real` is a setting.

    python benchmarks/async_throughput.py --real workers.simulators.num_workers=2
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.workers.modelled import ModelledHardware, ModelledRun, compute_throughput_bound, run_modelled

sys.path.insert(0, str(Path(__file__).parent))

RESULT = Path(__file__).parent / "results" / "async_throughput.json"
MODES = {
    "sync": "sync",
    "rollout_async": "+ rollout async",
    "train_async": "+ train async",
    "stream": "+ stream",
}
NUM_DEVICES = 12
CONSOLE = Console(width=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the updates")
    parser.add_argument("--no-write", action="store_true")
    parser.add_argument("--updates", type=int, default=200, help="of each modelled run")
    parser.add_argument("--real", nargs="*", metavar="SETTING", help="real processes, with these settings")
    parser.add_argument("--name", default="real", help="of the result file of --real")
    parser.add_argument(
        "--ends", action="store_true", help="time the parts of --real first and last, not between runs"
    )
    args = parser.parse_args()
    if args.real is not None:
        from async_real import real  # heavy parts are imported only where they are used

        real(args.real, args.name, write=not args.no_write, between=not args.ends)
        return
    num = args.updates // 10 if args.quick else args.updates
    result = modelled(num)
    if not args.quick and not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def modelled(num_updates: int) -> dict[str, Any]:
    """Every table; what is required is checked at the end."""
    base = ModelledHardware()
    tails = levels("log-normal latencies, sigma 0.5", base, num_updates)
    exact = levels("no tails: sigma 0", replace(base, sigma=0.0), num_updates)
    few = max(num_updates // 4, 10)
    result = {
        "model": asdict(base),
        "num_updates": num_updates,
        "levels": tails,
        "levels_without_tails": exact,
        "generator_fixed": [
            {"fixed": share} | one(replace(base, generator_fixed=share), few) for share in (0.0, 0.25, 0.5)
        ],
        "env_batches": [{"env_batches": n} | one(replace(base, env_batches=n), few) for n in (1, 2, 4)],
        "allocation": [
            {"rollout": rollout, "trainer": NUM_DEVICES - rollout} | by_mode(allotted(base, rollout), few)
            for rollout in (6, 8, 9)
        ],
        "episodes": [
            {"episodes": name, "turns": turns} | by_mode(ending(base, turns), few)
            for name, turns in (("fixed length", (10, 10)), ("ending early", (1, 19)))
        ],
    }
    sweep("generator: fixed share of a call", result["generator_fixed"], "fixed")
    sweep("environment batches per simulator", result["env_batches"], "env_batches")
    compare(f"rollout : trainer devices (of {NUM_DEVICES})", result["allocation"], ("rollout", "trainer"))
    compare("episodes (epochs of two updates of 16)", result["episodes"], ("episodes",))
    ratio, share = tails[-1]["times_sync"], tails[-1]["of_bound"]
    result["required"] = {"times_sync": 1.85, "of_bound": 0.95, "is_met": ratio >= 1.85 and share >= 0.95}
    CONSOLE.print(
        f"stream: {ratio:.2f} x sync (required 1.85), {share:.3f} of the bound (required 0.95); "
        f"without tails {exact[-1]['times_sync']:.2f} x"
    )
    return result


def levels(title: str, model: ModelledHardware, num_updates: int) -> list[dict[str, Any]]:
    """All four modes of one model."""
    most, alone = compute_throughput_bound(model, max(num_updates // 4, 10))
    runs = {mode: run_modelled(model, mode, num_updates) for mode in MODES}  # type: ignore[arg-type]
    rows = [{"mode": mode} | figures(run, runs["sync"], most) for mode, run in runs.items()]
    show(title, rows, most, alone)
    return rows


def figures(run: ModelledRun, sync: ModelledRun, most: float) -> dict[str, Any]:
    return {
        "env_steps_per_unit": round(run.throughput, 4),
        "times_sync": round(run.throughput / sync.throughput, 3),
        "of_bound": round(run.throughput / most, 3),
        "busy": {group: round(share, 3) for group, share in run.busy.items()},
        "max_staleness": max(run.staleness),
        "mean_staleness": round(sum(run.staleness) / len(run.staleness), 2),
        "dropped": run.num_dropped,
        "mean_batch": round(run.mean_batch, 1),
    }


def one(model: ModelledHardware, num_updates: int) -> dict[str, Any]:
    """Sync and stream of a model."""
    most, _ = compute_throughput_bound(model, num_updates)
    sync, stream = (run_modelled(model, mode, num_updates) for mode in ("sync", "stream"))  # type: ignore[arg-type]
    return {"sync": round(sync.throughput, 4)} | figures(stream, sync, most)


def by_mode(model: ModelledHardware, num_updates: int) -> dict[str, Any]:
    most, _ = compute_throughput_bound(model, num_updates)
    found = {mode: run_modelled(model, mode, num_updates).throughput for mode in MODES}  # type: ignore[arg-type]
    return {"bound": round(most, 4), **{mode: round(value, 4) for mode, value in found.items()}}


def allotted(model: ModelledHardware, rollout: int) -> ModelledHardware:
    """So many of the devices for simulation and generation; at 6 of 12 the groups are as fast as told."""
    half, trainer = NUM_DEVICES / 2, NUM_DEVICES - rollout
    return replace(
        model,
        simulator=model.simulator * half / rollout,
        generator=model.generator * half / rollout,
        trainer=model.trainer * half / trainer,
    )


def ending(model: ModelledHardware, turns: tuple[int, int]) -> ModelledHardware:
    """Epochs of two updates, so that waiting for one and starting on the first batch differ."""
    return replace(model, turns=turns, global_batch=16, rollout_epochs=2, max_staleness=4)


def show(title: str, rows: list[dict[str, Any]], most: float, alone: dict[str, float]) -> None:
    table = Table(title=f"{title}; bound {most:.3f} env steps per unit")
    for name in ("", "env steps / unit", "x sync", "of bound", *alone, "staleness", "batch"):
        table.add_column(name, justify="left" if not name else "right")
    for row in rows:
        table.add_row(
            MODES[row["mode"]],
            f"{row['env_steps_per_unit']:.3f}",
            f"{row['times_sync']:.2f}",
            f"{row['of_bound']:.3f}",
            *(f"{100 * row['busy'][group]:.0f} %" for group in alone),
            f"{row['mean_staleness']:.2f} (max {row['max_staleness']})",
            f"{row['mean_batch']:.1f}",
        )
    table.add_row("alone", *[""] * 3, *(f"{value:.2f}" for value in alone.values()), "", "")
    CONSOLE.print(table)


def sweep(title: str, rows: list[dict[str, Any]], key: str) -> None:
    table = Table(title=title)
    for name in (key, "sync", "stream", "x sync", "of bound"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = (row["sync"], row["env_steps_per_unit"], row["times_sync"], row["of_bound"])
        table.add_row(f"{row[key]}", *(f"{cell:.3f}" for cell in cells))
    CONSOLE.print(table)


def compare(title: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    table = Table(title=title)
    for name in ("", *MODES.values(), "bound"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [*(row[mode] for mode in MODES), row["bound"]]
        table.add_row(" : ".join(str(row[key]) for key in keys), *(f"{cell:.3f}" for cell in cells))
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
