"""Training killed at random moments: the run that goes on is, bit for bit, the one that was never killed.

For each optimizer a run in mode `off` is made once without interruption. Then the same run gets SIGKILL
again and again, at a random moment of every second update and once in its warm start, and goes on with
`resume`. At the end weights, optimizer state and the record of both runs must be equal.

    python benchmarks/training_kills.py                     # 30 kills each; results/training_kills.json
    python benchmarks/training_kills.py --kills 4 --no-write
    DNNL_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python benchmarks/training_kills.py --name avx2

The last one makes an x86 CPU compute as one without AVX-512 and bfloat16 does.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.monitors.jsonl import read_entries
from stepwell.runs.machine import describe_machine
from stepwell.runs.run import train
from stepwell.training import list_checkpoints

RESULTS = Path(__file__).parent / "results"
OPTIMIZERS = ("muon", "adamw")
UPDATES_PER_KILL = 2
SETTINGS = (
    "env.options={size=4, max_turns=2}",
    "policy.model=tiny-0.3m",
    "sampling.max_tokens=10",
    "rewards.scale=0.1",
    "num_threads=1",
    "recipe.name=steppo",
    "warm_start={num_demos=32, batch_size=16, epochs=4}",
    "warm_start.optimizer={learning_rate=3e-3, muon_learning_rate=0.01}",
    "train.num_tasks=16",
    "train.tasks_per_update=4",
    "train.group_size=2",
    "eval={num_tasks=4, every=20}",
    "checkpoint={every=1, keep=2}",
    "monitor={console=false, tensorboard=false, report=false}",
)


def settings_of(kind: str, num_kills: int, folder: Path, name: str) -> RunConfig:
    """A run of two updates per kill, with this optimizer in the warm start too."""
    more = (f"train.optimizer.kind={kind}", f"warm_start.optimizer.kind={kind}")
    where = (f"folder={folder}", f"name={name}", f"train.num_updates={UPDATES_PER_KILL * (num_kills + 4)}")
    return load_config(None, [*SETTINGS, *more, *where])


def start_or_resume(config: RunConfig) -> None:
    """In a process of its own: start the run, or go on with it."""
    folder = Path(config.folder) / str(config.name)
    if (folder / "config.toml").exists():
        train(resume=folder)
    else:
        train(config)


def start_process(config: RunConfig) -> Any:
    """A forked process: it shares what is imported, and nothing that was computed."""
    child = multiprocessing.get_context("fork").Process(target=start_or_resume, args=(config,))
    child.start()
    return child


def newest_update(folder: Path) -> int:
    """The update of the newest checkpoint; -1 while there is none."""
    return max((int(path.name[-6:]) for path in list_checkpoints(folder / "checkpoints")), default=-1)


def kill_again_and_again(config: RunConfig, num_kills: int, update_s: float, rng: random.Random) -> int:
    """Run to the end in spite of so many kills; returns how many there were."""
    folder, kills = Path(config.folder) / str(config.name), 0
    for number in range(num_kills):
        wanted = UPDATES_PER_KILL * number - 1  # the first kill comes in the warm start
        child = start_process(config)
        while child.is_alive() and (newest_update(folder) < wanted or not (folder / "config.toml").exists()):
            time.sleep(0.002)
        child.join(rng.uniform(0.0, update_s))
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
    last = start_process(config)
    last.join()
    assert last.exitcode == 0, "the run did not come to its end"
    return kills


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two runs: weights, optimizer state, record."""
    found = []
    ends = [list_checkpoints(folder / "checkpoints")[-1] for folder in (one, other)]
    if ends[0].name != ends[1].name:
        return [f"one ends at {ends[0].name}, the other at {ends[1].name}"]
    for path in sorted(ends[0].rglob("*.safetensors")):
        weights = [load_file(path), load_file(ends[1] / path.relative_to(ends[0]))]
        found += [f"{path.name}: {key}" for key in weights[0] if not torch.equal(*(w[key] for w in weights))]
    states = [torch.utils._pytree.tree_leaves(torch.load(end / "trainer.pt")) for end in ends]
    for index, (a, b) in enumerate(zip(*states, strict=True)):
        is_equal = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        found += [] if is_equal else [f"trainer.pt: entry {index}"]
    if record_of(one) != record_of(other):
        found.append("metrics.jsonl")
    return found


def record_of(folder: Path) -> list[Any]:
    """The record without what depends on the clock."""
    return [
        (e.kind, e.update, e.env_steps, {k: v for k, v in e.values.items() if not _is_clock(k)})
        for e in read_entries(folder / "metrics.jsonl")
        if e.kind != "event"
    ]


def _is_clock(name: str) -> bool:
    return name.startswith("time/") or name == "tokens_per_s"


def measure(kind: str, num_kills: int, seed: int, place: Path) -> dict[str, Any]:
    """One optimizer: the run without and with kills, compared."""
    began = time.monotonic()
    whole = settings_of(kind, num_kills, place, f"{kind}-whole")
    child = start_process(whole)
    child.join()
    assert child.exitcode == 0, "the run without kills failed"
    update_s = (time.monotonic() - began) / whole.train.num_updates
    killed = settings_of(kind, num_kills, place, f"{kind}-killed")
    kills = kill_again_and_again(killed, num_kills, update_s, random.Random(seed))
    found = differences(place / str(whole.name), place / str(killed.name))
    return {
        "optimizer": kind,
        "kills": kills,
        "updates": whole.train.num_updates,
        "bit-equal": not found,
        "differences": found[:10],
        "wall_s": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="", help="added to the name of the result")
    parser.add_argument("--no-write", action="store_true", help="print only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    flags = {
        name: os.environ[name] for name in ("DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY") if name in os.environ
    }
    with tempfile.TemporaryDirectory() as place:
        runs = [measure(kind, args.kills, args.seed, Path(place)) for kind in OPTIMIZERS]
    result = {
        "machine": describe_machine() | {"capability": torch.backends.cpu.get_cpu_capability()},
        "environment": flags,
        "runs": runs,
    }
    print(json.dumps(result, indent=2))
    if not args.no_write:
        name = "_".join(["training_kills", *([args.name] if args.name else [])])
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    assert all(run["bit-equal"] and run["kills"] == args.kills for run in runs), "see the result"


if __name__ == "__main__":
    main()
