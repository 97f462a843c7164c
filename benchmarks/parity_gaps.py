"""Why engine and trainer differ about a token: rounding, or a fault?

A checkpoint plays episodes, and the logprobs of every token it sampled are computed again with the same
weights: by the trainer as it packs them, by the trainer one step at a time, and by the trainer in float32,
which stands for the truth. If engine and trainer are as far from the truth as from one another, and either
is as often the nearer one where they differ most, it is rounding. If one of the two is right wherever they
differ, the other has a fault.

    python benchmarks/parity_gaps.py runs/NAME                              # in the run's own dtype
    python benchmarks/parity_gaps.py runs/NAME --dtype bfloat16             # its weights rounded to another
    python benchmarks/parity_gaps.py runs/NAME --tasks 512 --samples 4      # more tokens
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Scorer, Step
from stepwell.runs.build.components import Components
from stepwell.runs.evaluation.evaluate import find_checkpoint
from stepwell.runs.evaluation.held_out import evaluate

RESULTS = Path(__file__).parent / "results"
PAIRS = (("engine", "trainer"), ("trainer", "alone"), ("engine", "truth"), ("trainer", "truth"))
CHUNK = 64
NUM_WORST = 24

Vector = NDArray[np.float64]


def scored(policy: Scorer, steps: Sequence[Step], chunk: int) -> Vector:
    """The trainer's logprobs of all tokens, `chunk` steps packed together."""
    found = [one for i in range(0, len(steps), chunk) for one in policy.score(steps[i : i + chunk])]
    return np.concatenate(found).astype(np.float64)


def measured(config: RunConfig, num_tasks: int, samples: int) -> dict[str, Vector]:
    """The logprobs of every token of fresh episodes, as each of the four has them."""
    components = Components(config)
    try:
        tasks = components.list_held_out_tasks(num_tasks)
        played = evaluate(components, tasks, temperature=1.0, samples_per_task=samples).trajectories
        steps = [step for t in played for step in t.steps if step.num_units]
        policy = components.policy
        logprobs = {
            "engine": np.concatenate([step.behavior_logprobs for step in steps]).astype(np.float64),
            "trainer": scored(policy, steps, CHUNK),
            "alone": scored(policy, steps, 1),
        }
        policy.model.float()  # the same weights, computed with in float32
        return logprobs | {"truth": scored(policy, steps, CHUNK)}
    finally:
        components.close()


def report_of(logprobs: dict[str, Vector]) -> dict[str, Any]:
    """Quantiles of the gaps of each pair, and the tokens about which engine and trainer differ most."""
    pairs = {}
    for a, b in PAIRS:
        gaps = np.abs(logprobs[a] - logprobs[b])
        pairs[f"{a} - {b}"] = {
            "mean": float(gaps.mean()),
            **{f"{q:g}": float(np.quantile(gaps, q)) for q in (0.99, 0.999, 0.9999)},
            "most": float(gaps.max()),
            "over 0.5": int((gaps > 0.5).sum()),
        }
    engine, trainer, truth = (logprobs[name] for name in ("engine", "trainer", "truth"))
    worst = np.argsort(-np.abs(engine - trainer))[:NUM_WORST]
    nearer = np.abs(engine - truth) < np.abs(trainer - truth)
    return {
        "num_tokens": len(engine),
        "gaps": pairs,
        "worst": [{name: round(float(x[i]), 4) for name, x in logprobs.items()} for i in worst],
        "engine nearer the truth, of the worst": int(nearer[worst].sum()),
    }


def show(report: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"differences of logprobs over {report['num_tokens']:,} tokens")
    columns = list(next(iter(report["gaps"].values())))
    table.add_column("between")
    for column in columns:
        table.add_column(column, justify="right")
    for name, values in report["gaps"].items():
        table.add_row(name, *(f"{values[c]:.4f}" if c != "over 0.5" else f"{values[c]}" for c in columns))
    console.print(table)
    worst = Table(title="the tokens about which engine and trainer differ most")
    for name in report["worst"][0]:
        worst.add_column(name, justify="right")
    for row in report["worst"]:
        worst.add_row(*(f"{value:.3f}" for value in row.values()))
    console.print(worst)
    told = report["engine nearer the truth, of the worst"]
    console.print(f"the engine is nearer to float32 in {told} of these {len(report['worst'])}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run's folder (its best checkpoint), or a checkpoint in it")
    parser.add_argument("--tasks", type=int, default=128)
    parser.add_argument("--samples", type=int, default=1, help="episodes of each task")
    parser.add_argument("--dtype", help="of engine and trainer; default: the run's")
    parser.add_argument("--write", metavar="NAME", help="keep the figures as results/parity_gaps_NAME.json")
    args = parser.parse_args()
    is_run = (args.run / "config.toml").exists()
    config = load_config((args.run if is_run else args.run.parent.parent) / "config.toml")
    model = find_checkpoint(args.run) if is_run else args.run
    changes = {"model": str(model), "dtype": args.dtype or config.policy.dtype}
    config = config.model_copy(update={"policy": config.policy.model_copy(update=changes)})
    report = {"dtype": changes["dtype"], **report_of(measured(config, args.tasks, args.samples))}
    show(report)
    if args.write:
        path = RESULTS / f"parity_gaps_{args.write}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(f"written to {path}")


if __name__ == "__main__":
    main()
