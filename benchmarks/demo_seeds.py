"""The demo for several seeds: held-out success before and after, curves and baselines, in one file.

python benchmarks/demo_seeds.py                     three seeds, three to four minutes each
python benchmarks/demo_seeds.py --from RUN [RUN …]  of runs that were made already
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from stepwell.monitors.jsonl import read_entries
from stepwell.monitors.summary import read_summary

RESULT = Path(__file__).parent / "results" / "demo_seeds.json"


def told(folder: Path) -> dict[str, Any]:
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
        "curve": [
            {"update": e.update, "env_steps": e.env_steps, "success": e.values["success"]}
            for e in entries
            if e.kind == "eval"
        ],
        "machine": summary.machine,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--from", dest="runs", type=Path, nargs="+", help="folders of runs made already")
    args = parser.parse_args()
    folders = args.runs
    if folders is None:
        from stepwell.pipeline.demo import run_demo

        folders = [run_demo(seed, args.folder) for seed in args.seeds]
    results = [told(folder) for folder in folders]
    for result in results:
        print(
            f"seed {result['seed']}: {result['success_before']:.3f} -> {result['success_after']:.3f} in "
            f"{result['wall_s']:.0f} s, {result['env_steps']:,} environment steps  {result['baselines']}"
        )
    RESULT.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
