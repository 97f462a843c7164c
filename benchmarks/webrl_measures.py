"""WebRL's loss with figures of how far it gets: what its steps ask for, and what log-ratio they have.

    stepwell train webrl-tiny recipe.loss.function=benchmarks.webrl_measures:measured_loss
    python benchmarks/webrl_measures.py runs/NAME --to FILE.json

The loss is `webrl_loss`. Its figures are means over all steps of a minibatch before its optimizer step, apart
for steps with a positive and a negative advantage; so they add up over microbatches, and `metrics.jsonl` has
their means over the passes of an update. From them follow, per update: the log-ratio that steps ask for (A/β)
and have, and the share of the target that is reached (regression through the origin).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path

import torch
from torch import Tensor

from stepwell.algos.declarations import loss
from stepwell.algos.losses.inputs import LossInputs, Metrics
from stepwell.algos.losses.webrl import webrl_loss


@loss(needs=("advantages", "reference"), couples="step", old_samples="allowed", aggregate="step_mean")
def measured_loss(
    inputs: LossInputs,
    *,
    beta: float = 1.0,
    length_normalize: bool = False,
    max_residual: float | None = None,
) -> tuple[Tensor, Metrics]:
    """`webrl_loss`, with the figures."""
    total, _ = webrl_loss(inputs, beta=beta, length_normalize=length_normalize, max_residual=max_residual)
    with torch.no_grad():
        reduction = inputs.reduction
        ratio = reduction.step_sum(inputs.policy_logprobs - inputs.read_reference())
        advantages = reduction.step_mean(inputs.read_advantages())
        weights = reduction.step_weights()
        metrics = {}
        for name, chosen in (("up", advantages > 0), ("down", advantages <= 0)):
            share = weights * chosen
            metrics[f"{name}/share"] = share.sum()
            metrics[f"{name}/target"] = share @ (advantages / beta)
            metrics[f"{name}/ratio"] = share @ ratio.clamp(-20, 20)
        metrics["target_square"] = weights @ (advantages / beta).square()
        metrics["ratio_square"] = weights @ ratio.clamp(-20, 20).square()
        metrics["product"] = weights @ (advantages / beta * ratio.clamp(-20, 20))
    return total, metrics


def read_updates(run: Path) -> list[dict[str, float]]:
    """The figures of each update of a run."""
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluated = {entry["update"]: entry["success"] for entry in entries if entry["kind"] == "eval"}
    rows = []
    for m in (entry for entry in entries if entry["kind"] == "update"):
        row = {name: m[key] for name, key in _PLAIN.items() if key in m}
        row["after_evaluation"] = m["update"] - 1 in evaluated
        if m["update"] in evaluated:
            row["held_out"] = evaluated[m["update"]]
        if "loss/product" in m:
            row |= {"up": m["loss/up/share"], "wobble": math.sqrt(m["loss/ratio_square"])}
            row["reached"] = m["loss/product"] / m["loss/target_square"]
            for way, share in (("up", m["loss/up/share"]), ("down", m["loss/down/share"])):
                if share:
                    row[f"{way}_target"] = m[f"loss/{way}/target"] / share
                    row[f"{way}_ratio"] = m[f"loss/{way}/ratio"] / share
        rows.append({name: float(f"{value:.4g}") for name, value in row.items()})
    return rows


_PLAIN = {
    "update": "update",
    "success": "success",
    "rate": "learning_rate",
    "kl": "update_kl",
    "grad_norm": "grad_norm",
    "critic_loss": "loss/value",
    "explained": "explained_variance",
    "replayed": "replay/steps",
    "checker_success": "outcome/checker_success",
    "agreement": "outcome/agreement",
    "false_yes": "outcome/false_yes",
    "engine_farther": "parity/engine_farther",
    "engine_error": "parity/engine_error",
    "trainer_error": "parity/trainer_error",
}


def sum_up_parity(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Share of tokens in which the engine is farther from float32, after evaluations and in other updates."""
    found = {}
    for name, is_after in (("after_evaluation", True), ("others", False)):
        shares = [
            row["engine_farther"]
            for rows in runs.values()
            for row in rows
            if "engine_farther" in row and bool(row["after_evaluation"]) is is_after
        ]
        if shares:
            middle = statistics.fmean(shares)
            spread = statistics.pstdev(shares)
            found[name] = {"updates": len(shares), "mean": middle, "spread": spread, "highest": max(shares)}
    return found


def main() -> None:
    """Print a table of each run, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--to", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    runs = {run.name: read_updates(run) for run in args.runs}
    for run, rows in runs.items():
        print(run)
        for row in rows:
            print("  ".join(f"{name} {value:.3g}" for name, value in row.items()))
    if args.to is not None:
        lines = [f"  {json.dumps(name)}: {json.dumps(rows)}" for name, rows in sorted(runs.items())]
        parity = json.dumps(sum_up_parity(runs))
        args.to.write_text('{\n "parity": ' + parity + ',\n "runs": {\n' + ",\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__":
    main()
