"""How often an outcome model is right about the roll-outs of runs, with the environment's checkers as truth.

    stepwell orm train runs/A runs/B --channel train --to runs/orm
    python benchmarks/outcome_model_rollouts.py runs/orm --taught runs/A runs/B --runs runs/C --to FILE.json
    python benchmarks/outcome_model_rollouts.py --plot FILE.json        # FILE.svg beside it

`--taught` names the runs that it learnt from; their tasks are left out of the others' roll-outs, so that
every figure is of tasks that it has not seen. Of each run at most `--most` roll-outs count, evenly spread.
The file is written after each run.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from stepwell.core.disk import atomic_write
from stepwell.monitors.calibration import draw_calibration
from stepwell.rewards.outcome_model.measures import list_reliability, measure_baselines, measure_judge
from stepwell.runs.outcome_model.model import OutcomeModel
from stepwell.runs.outcome_model.rollouts import LabelledRollout, read_rollouts


def measure_runs(
    model: OutcomeModel, taught: Sequence[str], runs: Sequence[str], most: int, to: Path
) -> None:
    """Judge each run's roll-outs and write figures of each, and of all of them."""
    seen = {one.trajectory.task.id for one in read_rollouts(taught, channel="train")}
    rows: list[dict[str, Any]] = []
    known: list[tuple[LabelledRollout, float]] = []
    for run in runs:
        rollouts = read_rollouts([run], channel="train")
        unseen = [one for one in rollouts if one.trajectory.task.id not in seen]
        kept = unseen[:: max(1, -(-len(unseen) // most))]
        if not kept:
            continue
        start = time.perf_counter()
        answers = [float(p) for p in model.judge([one.trajectory for one in kept]) if p is not None]
        known += zip(kept, answers, strict=True)
        rows.append(
            {"run": Path(run).name, "of_unseen_tasks": len(unseen), "of_all": len(rollouts)}
            | _describe(kept, answers)
            | {"judged_in_s": round(time.perf_counter() - start, 1)}
        )
        print(rows[-1]["run"], rows[-1]["score"]["accuracy"], flush=True)
        every, values = [one for one, _ in known], [p for _, p in known]
        written = {
            "judge": model.name,
            "training": model.figures,
            "machine": {"processor": platform.processor() or platform.machine(), "gpu": _name_gpu()},
            "taught": [Path(name).name for name in taught],
            "runs": rows,
            "all": _describe(every, values)
            | {"reliability": [asdict(b) for b in list_reliability(values, [o.is_success for o in every])]},
        }
        atomic_write(to, json.dumps(written, indent=1) + "\n")


def _describe(rollouts: Sequence[LabelledRollout], answers: Sequence[float]) -> dict[str, Any]:
    labels = [one.is_success for one in rollouts]
    baselines = measure_baselines([one.trajectory for one in rollouts], labels)
    score = {
        name: value and round(value, 4) for name, value in asdict(measure_judge(answers, labels)).items()
    }
    return {"score": score, "majority": round(baselines["majority"].accuracy, 4)}


def _name_gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--taught", nargs="+", default=[])
    parser.add_argument("--runs", nargs="+", default=[])
    parser.add_argument("--most", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.plot is not None:
        found = json.loads(args.plot.read_text())
        drawn = draw_calibration(found["judge"], found["all"]["reliability"])
        args.plot.with_suffix(".svg").write_text(drawn, encoding="utf-8")
        return
    if args.model is None or args.to is None:
        parser.error("give the model's folder and --to")
    model = OutcomeModel.load(args.model, device=args.device)
    measure_runs(model, args.taught, args.runs, args.most, args.to)


if __name__ == "__main__":
    main()
