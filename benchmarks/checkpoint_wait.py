"""How long training waits for a checkpoint that is also the best: written beside training, and in its place.

    python benchmarks/checkpoint_wait.py                          # smollm2-135m, own critic, AdamW: 3.2 GB
    python benchmarks/checkpoint_wait.py --device cuda --name h200

"In place" is a write for which training waits, of the numbered checkpoint and, apart, of the best weights.
"Beside" is the copy for which it waits; the first one also allocates the memory. Meanwhile a thread that runs
Python takes the time of its longest pause. `cpu_s` is of the whole process, the write included; `wait_cpu_s`
is of the wait alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from stepwell.algos.recipes import RECIPES
from stepwell.config.training import TrainConfig
from stepwell.policies import CausalLMPolicy
from stepwell.runs.machine import describe_machine
from stepwell.training import Trainer, save_checkpoint
from stepwell.training.checkpoint import BEST, collect_state, find_damage, write_checkpoint
from stepwell.training.checkpoint_writer import CheckpointWriter

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to write; its disk is what is measured")
    parser.add_argument("--name", default="cpu", help="of the result")
    args = parser.parse_args()
    policy, trainer = build_parts(args.model, args.device)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        result: dict[str, Any] = {"machine": describe_machine(), "model": args.model, "device": args.device}
        result |= measure_in_place(policy, trainer, Path(folder) / "in_place")
        result |= measure_beside(policy, trainer, Path(folder) / "beside", args.rounds)
    (RESULTS / f"checkpoint_wait_{args.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def build_parts(model: str, device: str) -> tuple[CausalLMPolicy, Trainer]:
    """A policy and a trainer whose optimizer has taken a step."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    policy = CausalLMPolicy.from_pretrained(model, critic="own", dtype=dtype, device=device)
    trainer = Trainer(policy, RECIPES["ppo"], TrainConfig.model_validate({"optimizer": {"kind": "adamw"}}))
    for parameter in trainer.optimizer.parameters:
        parameter.grad = torch.full_like(parameter, 1e-3)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    return policy, trainer


def measure_in_place(policy: CausalLMPolicy, trainer: Trainer, folder: Path) -> dict[str, Any]:
    def write() -> None:
        save_checkpoint(folder, policy, trainer, {"update": 1})
        save_checkpoint(folder, policy, None, {"update": 1}, BEST)

    seconds, cpu_s = time_call(write)
    files = [path for path in (folder / "update-000001").rglob("*") if path.is_file()]
    gigabytes = round(sum(path.stat().st_size for path in files) / 1e9, 2)
    return {"gigabytes": gigabytes, "in_place": {"wait_s": seconds, "cpu_s": cpu_s}}


def measure_beside(policy: CausalLMPolicy, trainer: Trainer, folder: Path, rounds: int) -> dict[str, Any]:
    writer, rows = CheckpointWriter(print), []
    write = partial(write_checkpoint, folder, is_best=True)
    for update in range(1, rounds + 1):
        start, cpu = time.perf_counter(), time.process_time()
        writer.save(partial(collect_state, policy, trainer, {"update": update}), write)
        wait_s, waited_cpu, pause_s = time.perf_counter() - start, time.process_time(), 0.0
        while writer.is_writing:
            before = time.perf_counter()
            time.sleep(0.001)
            pause_s = max(pause_s, time.perf_counter() - before)
        writer.wait()
        row = {"wait_s": wait_s, "longest_pause_s": pause_s, "on_disk_s": time.perf_counter() - start}
        row |= {"wait_cpu_s": waited_cpu - cpu, "cpu_s": time.process_time() - cpu}
        rows.append({key: round(seconds, 3) for key, seconds in row.items()})
        assert find_damage(folder / f"update-{update:06d}") is None and find_damage(folder / BEST) is None
    return {"beside": rows}


def time_call(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the CPU."""
    start, cpu = time.perf_counter(), time.process_time()
    call()
    return round(time.perf_counter() - start, 3), round(time.process_time() - cpu, 3)


if __name__ == "__main__":
    main()
