"""A whole asynchronous run while its workers are killed at random, and an audit of what became of everything.

A run in mode `stream` with two simulators and two generators, each a process; every second or so one of them
gets SIGKILL, SIGSEGV or SIGSTOP (a hang). The run must come to its end, and afterwards

* every episode that was begun is finished or lost (and stored as such, once) or was abandoned at the end;
* every group that was learnt from has all its members, each seed once, none of them an `infra_error`;
* no process, shared memory or descriptor is left.

    python benchmarks/chaos.py                 # 60 kills; three to four minutes; results/chaos.json
    python benchmarks/chaos.py --kills 10      # a short one, which writes nothing
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Status
from stepwell.monitors.jsonl import read_entries
from stepwell.pool import Channel, Filter, open_pool
from stepwell.runs.build import worker_groups
from stepwell.runs.build.worker_groups import WorkerGroups
from stepwell.runs.machine import describe_machine
from stepwell.runs.run import train

RESULT = Path(__file__).parent / "results" / "chaos.json"
KILLS = 60
PAUSE_S = 2.0  # between kills: longer than a worker takes to be back, so that something is played
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
SETTINGS = (
    "env.options={size=3, max_turns=3}",
    "sampling.max_tokens=10",
    "recipe.name=rloo",
    "num_threads=1",
    "train.tasks_per_update=8",
    "train.group_size=4",
    "eval.num_tasks=0",
    "checkpoint.every=0",
    "monitor.console=false",
    "monitor.tensorboard=false",
    "workers.mode=stream",
    "workers.simulators={num_workers=2, env_batches=2, batch_size=4}",
    "workers.generators={num_workers=2, num_threads=1, shard='even'}",
    "workers.heartbeat_s=0.2",
    "workers.hang_s=3",
    "workers.max_restarts=10000",
)


class Killer(threading.Thread):
    """Kills one worker after the other, chosen at random."""

    def __init__(self, num_kills: int, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.num_kills, self.rng = num_kills, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.groups: WorkerGroups | None = None
        self.is_over = threading.Event()

    def run(self) -> None:
        while self.kills.total() < self.num_kills and not self.is_over.wait(
            PAUSE_S * self.rng.uniform(0.5, 1.5)
        ):
            if self.groups is None or self.groups.stream.buffer is None:
                continue  # nothing is played yet
            worker = self.rng.choice([*self.groups._simulators, *self.groups._generators])
            health, number = worker.read_health(), self.rng.choice(SIGNALS)
            if health.pid is None or not health.is_alive:
                continue
            try:
                os.kill(health.pid, number)
            except ProcessLookupError:  # it went meanwhile
                continue
            self.kills[f"{worker.name.split()[0]}, {number.name}"] += 1
        os.kill(os.getpid(), signal.SIGINT)  # enough: the run ends in order


def children() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields and int(fields[1]) == os.getpid():
            found.add(int(entry.name))
    return found


def left() -> tuple[set[int], list[str], list[str]]:
    """Processes, shared memory and kinds of descriptors that this process has now."""
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:stepwell" in line]
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own
            continue
    return children(), maps + sorted(os.listdir("/dev/shm")), [link for link in links if "memfd" in link]


def run_with(killer: Killer, config: RunConfig) -> tuple[Path, WorkerGroups]:
    """The run, with a killer told of its workers."""
    start = WorkerGroups.start.__func__  # type: ignore[attr-defined]

    def watched(cls: type[WorkerGroups], *args: Any) -> WorkerGroups:
        killer.groups = start(cls, *args)
        return killer.groups

    worker_groups.WorkerGroups.start = classmethod(watched)  # type: ignore[method-assign]
    killer.start()
    try:
        folder = train(config)
    finally:
        killer.is_over.set()
        worker_groups.WorkerGroups.start = classmethod(start)  # type: ignore[method-assign]
    assert killer.groups is not None
    return folder, killer.groups


def audit(folder: Path, groups: WorkerGroups, size: int) -> dict[str, Any]:
    """What the counters and the pool say of every episode; asserts that it adds up."""
    counts = groups.driver.counts
    assert counts.num_started == counts.num_finished + counts.num_failed + counts.num_abandoned, counts
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        entries = list(pool.find(Filter(channel=Channel.TRAIN)))
        lost = [entry for entry in entries if entry.status is Status.INFRA_ERROR]
        assert not any(entry.is_served for entry in lost), "a lost episode was served"
        complete = 0
        for name in {entry.group for entry in entries if entry.state == "consumed"}:
            members = [e for e in entries if e.group == name and e.is_served]
            seeds = {pool.get(entry.id).trajectory.info["seed"] for entry in members}
            assert len(members) == len(seeds) == size, f"group {name}: {len(members)} members"
            complete += 1
    assert len({entry.id for entry in entries}) == len(entries) == counts.num_finished + counts.num_failed
    updates = [entry for entry in read_entries(folder / "metrics.jsonl") if entry.kind == "update"]
    return {
        "episodes begun": counts.num_started,
        "finished": counts.num_finished,
        "lost with a worker": counts.num_failed,
        "abandoned at the end": counts.num_abandoned,
        "stored": len(entries),
        "groups learnt from": complete,
        "updates": len(updates),
        "restarts": int(sum(updates[-1].values[f"{g}/restarts"] for g in ("simulators", "generators"))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    before, began = left(), time.monotonic()
    killer = Killer(args.kills, args.seed)
    with tempfile.TemporaryDirectory() as place:
        wanted = (f"folder={place}", "name=chaos", "train.num_updates=1000000", f"seed={args.seed}")
        config = load_config("frozenlake", [*SETTINGS, "warm_start.num_demos=0", *wanted])
        folder, groups = run_with(killer, config)
        found = audit(folder, groups, config.train.group_size)
    assert left() == before, f"left behind: {left()}, before: {before}"
    assert killer.kills.total() >= args.kills, f"only {killer.kills.total()} kills"
    result = {
        "machine": describe_machine(),
        "kills": killer.kills.total(),
        "by kind": dict(sorted(killer.kills.items())),
        **found,
        "wall_s": round(time.monotonic() - began, 1),
    }
    table = Table("", "", title="A run whose workers are killed at random", show_header=False)
    for name, value in result.items():
        if name != "machine":
            table.add_row(name, json.dumps(value))
    Console().print(table)
    if args.kills >= KILLS:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
