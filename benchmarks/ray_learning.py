"""A run on a Ray cluster: does it learn as it does in processes of one machine?

Starts two nodes on this machine with `ray start`, as docs/cluster.md says, and trains Meta-World reach on
them by `stepwell train … --address HOST:PORT`, with the settings of studies/robots.toml (`reach-flow`,
`stream`). Keeps the curve, and what `stepwell cluster status` says of nodes and workers during the run.
The runs of the same settings without Ray are in `async_learning/results.json`. Two nodes on one machine
say nothing about speed.

    python benchmarks/ray_learning.py                 # 150,000 environment steps; results/ray_learning.json
    python benchmarks/ray_learning.py --quick         # one update, no file
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from stepwell.monitors.jsonl import read_entries
from stepwell.runs.machine import describe_machine

RESULT = Path(__file__).parent / "results" / "ray_learning.json"
RAY = str(Path(sys.executable).with_name("ray"))
NODE = ("--block", "--num-cpus", "3", "--object-store-memory", "100000000", "--disable-usage-stats")
RUN = "ray-reach"
SETTINGS = (
    *("policy.vla.head=flow", "seed=0", f"name={RUN}", "train.num_updates=200", "train.max_env_steps=150000"),
    *("num_threads=1", "eval.every=5", "eval.num_tasks=64", "train.schedule=constant"),
    *("train.optimizer.learning_rate=5e-5", "checkpoint.trajectories_mb=0", "workers.mode=stream"),
    *(
        "workers.simulators.num_workers=2",
        "workers.simulators.env_batches=2",
        "workers.simulators.batch_size=8",
    ),
    *("workers.generators.num_workers=1", "workers.generators.num_threads=1"),
    *("workers.generators.max_batch=16", "workers.generators.max_wait_ms=2.0"),
)
QUICK = ("train.num_updates=1", "eval.num_tasks=4", "warm_start.num_demos=2", "warm_start.epochs=1")


@contextmanager
def start_node(folder: Path, *options: str) -> Iterator[None]:
    """One node of a cluster, in processes of its own."""
    log = folder / f"node-{time.monotonic_ns()}.log"
    with log.open("w") as output:
        node = subprocess.Popen([RAY, "start", *options, *NODE], stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 180
        while "Ray runtime started" not in log.read_text():
            if node.poll() is not None or time.monotonic() > until:
                sys.exit(log.read_text())
            time.sleep(0.2)
        yield
    finally:
        node.terminate()
        node.wait(60)


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def list_workers(address: str) -> list[str]:
    """What `stepwell cluster status` prints while the run is under way."""
    command = [sys.executable, "-m", "stepwell", "cluster", "status", "--address", address]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def train(address: str, folder: Path, settings: tuple[str, ...]) -> dict[str, Any]:
    """The run by its command, and what the cluster said in the middle of it."""
    words = ["train", "metaworld-reach", *settings, "--address", address]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.Popen([sys.executable, "-m", "stepwell", *words], cwd=folder, env=env)
    metrics, status = folder / "runs" / RUN / "metrics.jsonl", []
    while run.poll() is None:
        time.sleep(2)
        is_learning = metrics.exists() and '"kind": "update"' in metrics.read_text()
        if is_learning and not status:
            status = list_workers(address)
    if run.returncode:
        sys.exit(f"stepwell {shlex.join(words)} ended with {run.returncode}")
    entries = read_entries(metrics)
    evals = [entry for entry in entries if entry.kind == "eval"]
    staleness = [e.values["staleness/max"] for e in entries if "staleness/max" in e.values]
    return {
        "command": f"stepwell {shlex.join(words).replace(address, 'HEAD:6379')}",
        "cluster": status,
        "curve": [
            {"update": e.update, "env_steps": e.env_steps, "success": e.values["success"]} for e in evals
        ],
        "seconds": round(evals[-1].time_s, 1),
        "staleness": max(staleness, default=0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one update; writes nothing")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp")))
        address = f"127.0.0.1:{find_port()}"
        head = ("--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false")
        stack.enter_context(start_node(folder, *head, "--temp-dir", str(folder / "head")))
        stack.enter_context(start_node(folder, "--address", address))
        found = train(address, folder, (*SETTINGS, *(QUICK if args.quick else ())))
    for point in found["curve"]:
        print(f"{point['env_steps']:>8} environment steps  held-out success {point['success']:.2f}")
    print("\n".join(found["cluster"]))
    if not args.quick:
        whole = {"machine": describe_machine(), "load_at_the_end": round(os.getloadavg()[0], 1), **found}
        RESULT.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
