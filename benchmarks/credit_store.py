"""What it costs to store the credit of an update, against the update itself.

    python benchmarks/credit_store.py [--updates 6] [--settings key=value …]

Runs updates of the preset `frozenlake` with `checkpoint.credit_mb` as it is by default, and times inside each
update: the collection of records from the device and the write to `credit.db`. Prints both as shares of the
update, and the bytes per action token. The result is in `results/`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from stepwell.config.loading import load_config
from stepwell.monitors.jsonl import read_entries
from stepwell.pool.credit_reading import list_credit_updates, read_credit, read_update_credit
from stepwell.pool.credit_store import CreditStore
from stepwell.runs.machine import describe_machine
from stepwell.runs.run import train
from stepwell.training import trainer as trainer_module

RESULT = Path(__file__).parent / "results" / "credit_store.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--settings", nargs="*", default=[])
    args = parser.parse_args()
    spent: dict[str, list[float]] = {"collect": [], "write": []}
    time_calls(trainer_module, "collect_credit", spent["collect"])
    time_calls(CreditStore, "write", spent["write"])
    with tempfile.TemporaryDirectory() as folder:
        fixed = [
            f"folder={folder}",
            "name=run",
            f"train.num_updates={args.updates}",
            "eval.num_tasks=0",
            "eval.every=0",
            "monitor.console=false",
            "monitor.tensorboard=false",
            "monitor.report=false",
        ]
        run = train(load_config("frozenlake", [*fixed, *args.settings]))
        result = measure(run, spent)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def time_calls(owner: Any, name: str, seconds: list[float]) -> None:
    """Time every call of a function, which otherwise does what it did."""
    call = getattr(owner, name)

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        try:
            return call(*args)
        finally:
            seconds.append(time.perf_counter() - start)

    setattr(owner, name, timed)


def measure(run: Path, spent: dict[str, list[float]]) -> dict[str, Any]:
    updates = [entry for entry in read_entries(run / "metrics.jsonl") if entry.kind == "update"]
    whole = [entry.values["time/rollout_s"] + entry.values["time/update_s"] for entry in updates]
    learning = [entry.values["time/update_s"] for entry in updates]
    extra = [sum(pair) for pair in zip(*spent.values(), strict=True)]
    last = list_credit_updates(run)[-1]
    records = read_update_credit(run, last)
    start = time.perf_counter()
    read_credit(run, records[0].trajectory)
    read_ms = 1000 * (time.perf_counter() - start)
    num_tokens = sum(int(record.tokens_per_step.sum()) for record in records)
    return {
        "num_updates": len(updates),
        "trajectories_per_update": len(records),
        "tokens_per_update": num_tokens,
        "update_s": statistics.median(whole),
        "learning_s": statistics.median(learning),
        "collect_ms": 1000 * statistics.median(spent["collect"]),
        "write_ms": 1000 * statistics.median(spent["write"]),
        "share_of_update": statistics.median(a / b for a, b in zip(extra, whole, strict=True)),
        "share_of_learning": statistics.median(a / b for a, b in zip(extra, learning, strict=True)),
        "file_bytes_per_token": (run / "credit.db").stat().st_size / (num_tokens * len(updates)),
        "read_one_ms": read_ms,
        "machine": describe_machine(),
    }


if __name__ == "__main__":
    main()
