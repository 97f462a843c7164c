"""How many replies of the demo keep their form while it learns, run by run.

python benchmarks/demo_form.py NAME=RUN [NAME=RUN …]     adds runs to demo_form.json

A reply that is not in the required form does nothing, so an agent that forgets the form stands still. A run
that was ended early counts as far as it went. To compare settings from one warm start, begin at the first
checkpoint of a demo:

stepwell train demo warm_start.num_demos=0 policy.model=RUN/checkpoints/update-000000 rewards.format=0.01
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

from stepwell.config.loading import load_config
from stepwell.monitors.jsonl import read_entries
from stepwell.runs.build.recipe import resolve_recipe

RESULT = Path(__file__).parent / "results" / "demo_form.json"


def describe_form(name: str, folder: Path) -> dict[str, Any]:
    """The settings that matter here, and one figure for each update."""
    config = load_config(folder / "config.toml")
    recipe = resolve_recipe(config.recipe)
    assert recipe.credit is not None, "the demo's recipe has credit"
    updates = [e.values for e in read_entries(folder / "metrics.jsonl") if e.kind == "update"]
    return {
        "name": name,
        "seed": config.seed,
        "settings": {
            "rewards.format": config.rewards.format,
            "recipe.entropy_coef": recipe.entropy_coef,
            "train.minibatches": config.train.minibatches,
            **{f"recipe.credit.{key}": recipe.credit.kwargs[key] for key in ("gamma", "lam")},
        },
        "format_share": [round(values["format_share"], 3) for values in updates],
        "success": [round(values["success"], 3) for values in updates],
        "machine": {"processor": platform.processor() or platform.machine(), "torch": torch.__version__},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    args = parser.parse_args()
    known = json.loads(RESULT.read_text()) if RESULT.exists() else []
    for text in args.runs:
        name, _, folder = text.partition("=")
        known = [run for run in known if run["name"] != name] + [describe_form(name, Path(folder))]
    RESULT.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
