"""Runs of a study that a time limit cut: what their training episodes say, compared pair by pair.

    python benchmarks/unfinished_runs.py runs/study-NAME/runs/* --pairs OURS:THEIRS --out FILE

Held-out success is known for finished runs only; tables of a study leave the others out. Training success
is known for every update, on the same tasks for all runs of a seed. In each environment, two variants are
compared over the seeds that both have, by the mean of the last `WINDOW` updates that all runs of the pair
reached. Training episodes are those that the policy learns from next, so this is weaker evidence than a
held-out evaluation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from stepwell.core.disk import atomic_write
from stepwell.monitors import jsonl
from stepwell.studies.paired_differences import compare_pairs

WINDOW = 10
METRICS = (
    "success",
    "clip_share",
    "update_kl",
    "explained_variance",
    "grounding_share",
    "world_modeling_share",
)

Updates = dict[int, dict[str, float]]


def read_run(folder: Path) -> dict[str, Any]:
    """Held-out success so far, and the means of `METRICS` over every `WINDOW` updates."""
    entries = jsonl.read_entries(folder / jsonl.FILE_NAME)
    updates = {entry.update: entry.values for entry in entries if entry.kind == "update"}
    evals = [entry for entry in entries if entry.kind == "eval" and "success" in entry.values]
    last = max(updates, default=0)
    return {
        "run": folder.name,
        "updates": last,
        "held_out": {str(entry.update): round(entry.values["success"], 4) for entry in evals},
        **{
            name: [
                _average(updates, name, start, min(start + WINDOW, last + 1))
                for start in range(1, last + 1, WINDOW)
            ]
            for name in METRICS
            if any(name in values for values in updates.values())
        },
    }


def compare_variants(folders: Sequence[Path], ours: str, theirs: str) -> list[dict[str, Any]]:
    """Training success of two variants, an entry for each environment in which a seed has both."""
    runs = {variant: _list_runs(folders, variant) for variant in (ours, theirs)}
    both = runs[ours].keys() & runs[theirs].keys()
    if not both:
        raise SystemExit(f"{ours}, {theirs}: no seed of an environment has both")
    found = []
    for env in sorted({env for env, _ in both}):
        seeds = sorted(seed for at, seed in both if at == env)
        found.append(_compare_seeds(env, {n: {seed: runs[n][env, seed] for seed in seeds} for n in runs}))
    return found


def _compare_seeds(env: str, runs: Mapping[str, Mapping[str, Updates]]) -> dict[str, Any]:
    """Two variants in one environment, over the last updates that all their runs have."""
    (ours, theirs), seeds = runs, list(next(iter(runs.values())))
    chosen = {name: [runs[name][seed] for seed in seeds] for name in (ours, theirs)}
    end = min(max(updates) for of_variant in chosen.values() for updates in of_variant)
    begin = max(1, end - WINDOW + 1)
    means = {
        name: [[fmean(updates[u]["success"] for u in range(begin, end + 1))] for updates in of_variant]
        for name, of_variant in chosen.items()
    }
    found = compare_pairs(means[ours], means[theirs])
    return {
        "env": env,
        "pair": f"{ours} against {theirs}",
        "seeds": seeds,
        "updates": [begin, end],
        ours: [round(row[0], 4) for row in means[ours]],
        theirs: [round(row[0], 4) for row in means[theirs]],
        "difference": round(found.mean, 4),
        "interval": None if found.low is None else [round(found.low, 4), round(found.high or 0.0, 4)],
    }


def _list_runs(folders: Sequence[Path], variant: str) -> dict[tuple[str, str], Updates]:
    """The updates of a variant's runs by environment and seed; folders are ENV-VARIANT-seedN."""
    found: dict[tuple[str, str], Updates] = {}
    for folder in folders:
        name, _, seed = folder.name.rpartition("-seed")
        if not name.endswith(f"-{variant}"):
            continue
        key = name.removesuffix(f"-{variant}"), seed
        if key in found:
            raise SystemExit(f"{folder.name} is there twice; give the folders of one study")
        entries = jsonl.read_entries(folder / jsonl.FILE_NAME)
        updates = {entry.update: entry.values for entry in entries if entry.kind == "update"}
        if updates:
            found[key] = updates
    return found


def _average(updates: dict[int, dict[str, float]], name: str, begin: int, end: int) -> float | None:
    known = [updates[u][name] for u in range(begin, end) if name in updates.get(u, {})]
    return round(fmean(known), 6) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--pairs", nargs="*", default=[], help="OURS:THEIRS, two variants")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    content = {
        "how": "training episodes of runs that a time limit cut, and finished ones: means over ten updates",
        "pairs": [found for pair in args.pairs for found in compare_variants(args.folders, *pair.split(":"))],
        "runs": [read_run(folder) for folder in sorted(args.folders)],
    }
    atomic_write(args.out, json.dumps(content, indent=1) + "\n")
    for pair in content["pairs"]:
        print(json.dumps(pair))


if __name__ == "__main__":
    main()
