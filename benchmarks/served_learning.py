"""A GRPO run that learns through inference servers, beside the same run with the embedded engine.

A tiny model learns ten boards of FrozenLake. Every update the servers get the new weights. Both runs start
from the same weights and play the same tasks; sampling draws differently, so curves agree within noise.

    python benchmarks/served_learning.py --make DIR                     # the model to serve
    python benchmarks/served_learning.py --model DIR --backend vllm --url http://127.0.0.1:8000
    python benchmarks/served_learning.py --model DIR --backend embedded # one backend at a time
    python benchmarks/served_learning.py --draw                         # figure and table of what was run

`scripts/test_extra_vllm.sh --learn` starts vLLM and does all four. With `--sees` in each of them the boards
are images, and the model is one that sees.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from stepwell.config.loading import load_config
from stepwell.engines.served import replica
from stepwell.engines.served.images import rename_weights
from stepwell.engines.served.weight_folder import save_renamed
from stepwell.monitors.charts import Series, draw_line_chart
from stepwell.monitors.jsonl import read_entries
from stepwell.policies.tiny_models import build_tiny
from stepwell.policies.vlm.llava import save_llava
from stepwell.policies.vlm.tiny import build_tiny_vlm
from stepwell.runs.run import train

RESULTS = Path(__file__).parent / "results"
SETTINGS = (
    "env.options={size=3, max_turns=2}",
    "agent.guide=false",
    "sampling.max_tokens=10",
    "rewards.scale=0.1",
    "rewards.format=2.0",
    "warm_start.num_demos=10",
    "warm_start.batch_size=10",
    "warm_start.epochs=32",
    "warm_start.optimizer.learning_rate=3e-3",
    "recipe.name=grpo",
    "recipe.kl_coef=0",
    "recipe.reward_parts=['task', 'format']",
    "train.num_tasks=10",
    "train.tasks_per_update=10",
    "train.group_size=10",
    "train.optimizer.learning_rate=3e-4",
    "eval.num_tasks=4",
    "eval.every=0",
    "engine.max_length=512",
    "checkpoint.every=0",
    "monitor.tensorboard=false",
    "monitor.report=false",
    "num_threads=1",
)
SEES = (
    "env.options={size=3, max_turns=2, observation='image', tile_size=8}",
    "policy.train_vision=all",
    "agent.strategy=no_think",
    "rewards.format=0.5",
    "warm_start.epochs=28",
    "warm_start.optimizer.kind=muon",
    "warm_start.optimizer.muon_learning_rate=0.01",
    "train.optimizer.learning_rate=6e-4",
)


def make_model(folder: Path, sees: bool) -> None:
    """A tiny model with a head of its own: vLLM on CPUs does not update tied heads."""
    model, tokenizer = build_tiny_vlm("tiny-vlm-0.5m", seed=0) if sees else build_tiny("tiny-0.3m", seed=0)
    for config in {id(part): part for part in (model.config, model.config.get_text_config())}.values():
        config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    if sees:
        save_llava(model, tokenizer, folder)
        save_renamed(model, folder, rename_weights)
    else:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def name_result(sees: bool) -> Path:
    """Where the results of all runs are kept."""
    return RESULTS / f"served_learning{'_images' if sees else ''}.json"


def run_once(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run; its curve, its parity, and how long updates of the servers took."""
    engine = ["engine.backend=embedded"]
    if args.backend != "embedded":
        urls = ", ".join(f'"{url}"' for url in args.url)
        engine = [f"engine.backend={args.backend}", f"engine.urls=[{urls}]"]
    times: list[replica.UpdateTimes] = []
    update = replica.Replica.update_weights

    async def update_and_note(self: replica.Replica, published: replica.PublishedWeights) -> None:
        await update(self, published)
        assert self.times is not None
        times.append(self.times)

    replica.Replica.update_weights = update_and_note  # type: ignore[method-assign]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        where = [f"folder={folder}", "name=run", f"seed={seed}", f"policy.model={args.model}"]
        length = [f"train.num_updates={args.updates}"]
        try:
            chosen = [*SETTINGS, *(SEES if args.sees else ()), *where, *length, *engine, *args.settings]
            done = train(load_config(None, chosen))
        finally:
            replica.Replica.update_weights = update  # type: ignore[method-assign]
        entries = [entry for entry in read_entries(done / "metrics.jsonl") if entry.kind == "update"]
    return {
        "backend": args.backend,
        "seed": seed,
        "success": [round(entry.values["success"], 3) for entry in entries],
        "parity mean": [entry.values["parity/mean"] for entry in entries],
        "parity max": [entry.values["parity/max"] for entry in entries],
        "seconds": round(time.perf_counter() - began, 1),
        "weight updates": len(times),
        "paused_s": round(statistics.median(each.paused_s for each in times), 3) if times else None,
        "probes_s": round(statistics.median(each.probes_s for each in times), 3) if times else None,
        "probe gap": max((each.probe_gap for each in times), default=None),
        "machine": f"{platform.machine()}, CPU, float32",
    }


def draw_figure(rows: list[dict[str, Any]], sees: bool) -> None:
    """The curves of all runs, and a table."""
    colours = {"embedded": 0, "vllm": 1, "sglang": 2}
    series = [
        Series(
            f"{row['backend']}, seed {row['seed']}",
            list(range(1, len(row["success"]) + 1)),
            row["success"],
            color=colours[row["backend"]],
            smooth=2,
        )
        for row in rows
    ]
    title = f"GRPO on ten boards{' seen as images' if sees else ''}: success in training"
    text = draw_line_chart(series, title=title, x_label="update", y_label="success")
    name_result(sees).with_suffix(".svg").write_text(text)
    for row in rows:
        first, last = row["success"][:1], row["success"][-10:]
        print(
            f"{row['backend']:9} seed {row['seed']}: success {statistics.mean(first):.3f} → "
            f"{statistics.mean(last):.3f} (update 1, mean of the last 10), {len(row['success'])} updates, "
            f"parity mean {statistics.mean(row['parity mean']):.2g}, max {max(row['parity max']):.2g}, "
            f"paused {row['paused_s']} s, probes {row['probes_s']} s, {row['seconds']} s in all"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--make", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--backend", choices=("embedded", "vllm", "sglang"), default="vllm")
    parser.add_argument("--url", action="append", default=[])
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--sees", action="store_true")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    if args.make:
        return make_model(args.make, args.sees)
    result = name_result(args.sees)
    rows: list[dict[str, Any]] = json.loads(result.read_text()) if result.exists() else []
    for seed in args.seeds if args.model else []:
        rows = [row for row in rows if (row["backend"], row["seed"]) != (args.backend, seed)]
        rows.append(run_once(args, seed))
        rows.sort(key=lambda row: (row["backend"], row["seed"]))
        result.write_text(json.dumps(rows, indent=1))
    if args.draw:
        draw_figure(rows, args.sees)


if __name__ == "__main__":
    main()
