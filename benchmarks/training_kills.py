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
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from kills import kill_group, list_differences, newest_update, start_or_resume, start_process

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.runs.machine import describe_machine

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


def kill_again_and_again(config: RunConfig, num_kills: int, update_s: float, rng: random.Random) -> int:
    """Run to the end in spite of so many kills; returns how many there were."""
    folder, kills = Path(config.folder) / str(config.name), 0
    for number in range(num_kills):
        wanted = UPDATES_PER_KILL * number - 1  # the first kill comes in the warm start
        child = start_process(start_or_resume, config)
        while child.is_alive() and (newest_update(folder) < wanted or not (folder / "config.toml").exists()):
            time.sleep(0.002)
        child.join(rng.uniform(0.0, update_s))
        kills += kill_group(child)
    last = start_process(start_or_resume, config)
    last.join()
    assert last.exitcode == 0, "the run did not come to its end"
    return kills


def measure(kind: str, num_kills: int, seed: int, place: Path) -> dict[str, Any]:
    """One optimizer: the run without and with kills, compared."""
    began = time.monotonic()
    whole = settings_of(kind, num_kills, place, f"{kind}-whole")
    child = start_process(start_or_resume, whole)
    child.join()
    assert child.exitcode == 0, "the run without kills failed"
    update_s = (time.monotonic() - began) / whole.train.num_updates
    killed = settings_of(kind, num_kills, place, f"{kind}-killed")
    kills = kill_again_and_again(killed, num_kills, update_s, random.Random(seed))
    found = list_differences(place / str(whole.name), place / str(killed.name))
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
