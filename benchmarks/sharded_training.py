"""Training in shards beside the plain trainer: seconds of an update, memory of each rank, gaps of losses.

Every row is one trainer on the same batch: append-only dialogues with random tokens, random weights, GRPO
without a reference. `plain` trains in this process; the others have ranks (`training/ranks.py`), with whole
copies (`none`) or in shards (`full`, FSDP2). An update contains all that a trainer does: packing, passes,
clipping, the step; with ranks also what travels between processes, and the trained weights back to the host.
`published` adds copying the weights to the host where they are not there yet, as publishing them does.

`waits_s` is what the trainer's process waited for in the last update: each command to the ranks, and with
`collect_weights` all of taking their weights over. The rest of the update is the trainer's own work.

Memory is the peak of each rank from its start: of the GPU's allocator, or on the CPU of the process, less
what it had when it started. `weights` and `optimizer` are what a rank keeps between updates.

    python benchmarks/sharded_training.py                          # 1, 2 and 4 ranks on the CPU's cores
    python benchmarks/sharded_training.py --device cuda            # plain beside one rank, below a minute
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.core import Status, Step, Task, Trajectory
from stepwell.policies import CausalLMPolicy
from stepwell.training import Trainer
from stepwell.training.ranks import Ranks

RESULTS = Path(__file__).parent / "results"
SHAPES: dict[str, dict[str, int]] = {
    "360m": {
        "hidden_size": 960, "intermediate_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 15, "num_key_value_heads": 5, "vocab_size": 49152,
    },
    "20m": {
        "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 16384,
    },
}  # fmt: skip
BATCHES = {
    "cuda": {"groups": 4, "siblings": 8, "turns": 20, "prompt": 1024, "action": 128, "observation": 256},
    "cpu": {"groups": 2, "siblings": 2, "turns": 3, "prompt": 96, "action": 16, "observation": 32},
}
BUDGETS = {"cuda": 32768, "cpu": 512}


def draw_batch(vocab: int, *, groups: int, siblings: int, turns: int, **tokens: int) -> list[Trajectory]:
    """Dialogues whose prompt grows by every action and observation."""
    draw = np.random.default_rng(0)
    found = []
    for group in range(groups):
        prompt = draw.integers(0, vocab, tokens["prompt"])
        for _ in range(siblings):
            context, steps = prompt, []
            for _ in range(turns):
                action = draw.integers(0, vocab, tokens["action"])
                step = Step.from_tokens(context, action)
                step.behavior_logprobs = np.full(action.size, -np.log(vocab), np.float32)
                step.assign_reward({"task": float(draw.normal())})
                steps.append(step)
                context = np.concatenate([context, action, draw.integers(0, vocab, tokens["observation"])])
            found.append(Trajectory(Task("w", {"n": group}), steps, Status.FAILURE, group=f"g{group}"))
    return found


def write_model(shape: str, folder: Path, dtype: torch.dtype) -> None:
    """A directory with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=65536, tie_word_embeddings=True)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        LlamaForCausalLM(config).to(dtype).save_pretrained(folder)


def time_ranks(found: dict[str, float]) -> None:
    """Add up in `found` what calls of `Ranks` take from now on."""

    def time_method(method: str) -> None:
        run = getattr(Ranks, method)

        def run_timed(self: Ranks, *given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return run(self, *given, **named)
            finally:
                name = given[0] if method == "call" else method
                found[name] = found.get(name, 0.0) + time.perf_counter() - start

        setattr(Ranks, method, run_timed)

    for method in ("call", "send_trajectories", "take_batches", "collect_weights"):
        if hasattr(Ranks, method):
            time_method(method)


WAITS: dict[str, float] = {}


class Row:
    """One way of training."""

    def __init__(self, name: str, folder: Path, args: argparse.Namespace, sharding: str, ranks: int) -> None:
        self.name, self.is_cuda = name, args.device == "cuda"
        policy = CausalLMPolicy.from_pretrained(folder, dtype=args.dtype, device=args.device)
        settings = {"sharding": sharding, "token_budget": BUDGETS[args.device]}
        config = TrainConfig.model_validate(settings | {"optimizer": {"learning_rate": 1e-5}})
        devices = [args.device + (":0" if self.is_cuda else "")] * ranks
        recipe = replace(RECIPES["grpo"], kl=None)
        self.trainer = Trainer(policy, recipe, config, devices=devices, rank_timeout_s=600)
        if self.is_cuda and self.trainer.ranks is None:
            torch.cuda.reset_peak_memory_stats()
        self.losses: list[float] = []
        self.times: list[tuple[float, float]] = []

    def update(self, batch: list[Trajectory]) -> None:
        """One update, and its weights on the host."""
        WAITS.clear()
        start = time.perf_counter()
        self.losses.append(self.trainer.update(batch)["loss"])
        if self.is_cuda:
            torch.cuda.synchronize()
        middle = time.perf_counter()
        kept = {name: weight.cpu() for name, weight in self.trainer.policy.model_weights().items()}
        end = time.perf_counter()
        assert kept
        self.times.append((middle - start, end - start))

    def measure_memory(self) -> list[dict[str, float]]:
        if self.trainer.ranks is not None:
            return self.trainer.ranks.measure_memory()
        if not self.is_cuda:
            return []
        return [{"peak_mb": torch.cuda.max_memory_allocated() / 2**20}]


def measure_row(make: Callable[[], Row], batch: list[Trajectory], num_updates: int) -> dict[str, Any]:
    """The first update starts and warms up; the figures are of those after it."""
    row = make()
    try:
        for _ in range(1 + num_updates):
            row.update(batch)
        update_s, published_s = (statistics.median(column) for column in zip(*row.times[1:], strict=True))
        return {
            "update_s": update_s,
            "published_s": published_s,
            "losses": row.losses,
            "waits_s": dict(WAITS),
            "ranks": row.measure_memory(),
        }
    finally:
        row.trainer.close()
        del row
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--updates", type=int, default=2, help="timed updates of each row")
    parser.add_argument("--ranks", type=int, nargs="+", default=None)
    args = parser.parse_args()
    is_cuda = args.device == "cuda"
    args.dtype = "bfloat16" if is_cuda else "float32"
    shape, counts = ("360m", [1]) if is_cuda else ("20m", [1, 2, 4])
    batch = draw_batch(SHAPES[shape]["vocab_size"], **BATCHES[args.device])
    rows: dict[str, tuple[str, int]] = {"plain": ("none", 0)}
    for count in args.ranks or counts:
        if count > 1:
            rows[f"none, {count} ranks"] = ("none", count)
        rows[f"full, {count} rank{'s' if count > 1 else ''}"] = ("full", count)
    found: dict[str, Any] = {}
    time_ranks(WAITS)
    with tempfile.TemporaryDirectory() as folder:
        write_model(shape, Path(folder) / "model", getattr(torch, args.dtype))
        for name, (sharding, count) in rows.items():
            found[name] = measure_row(
                lambda name=name, sharding=sharding, count=count: Row(  # type: ignore[misc]
                    name, Path(folder) / "model", args, sharding, count
                ),
                batch,
                args.updates,
            )
            print_row(name, found[name], found["plain"])
    machine = torch.cuda.get_device_name() if is_cuda else f"{platform.machine()}, torch {torch.__version__}"
    result = {
        "machine": machine,
        "torch": torch.__version__,
        "model": shape,
        "dtype": args.dtype,
        "rows": found,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"sharded_training_{args.device}.json").write_text(
        json.dumps(result | {"rows": found}, indent=1) + "\n"
    )


def print_row(name: str, row: dict[str, Any], plain: dict[str, Any]) -> None:
    speed = [plain[key] / row[key] for key in ("update_s", "published_s")]
    gap = max(abs(a - b) for a, b in zip(row["losses"], plain["losses"], strict=True))
    memory = "; ".join(
        " ".join(f"{key.removesuffix('_mb')} {value:.0f}" for key, value in rank.items())
        for rank in row["ranks"]
    )
    times = f"update {row['update_s']:.2f} s ({speed[0]:.2f} of plain's speed), published "
    times += f"{row['published_s']:.2f} s ({speed[1]:.2f})"
    print(f"{name:16} {times}; losses differ by {gap:.1e}; MB by rank: {memory or '-'}", flush=True)
    waits = ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in row["waits_s"].items())
    print(f"{'':16} ms waited for ranks in the last update: {waits or '-'}", flush=True)


if __name__ == "__main__":
    main()
