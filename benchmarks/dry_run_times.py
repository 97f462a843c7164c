"""How long `stepwell train PRESET --dry-run` and commands that list something take, from start to end.

    python benchmarks/dry_run_times.py                      # every preset and list, three times
    python benchmarks/dry_run_times.py --presets demo web   # these presets, added to the result that is there
    python benchmarks/dry_run_times.py --presets            # only the lists
    python benchmarks/dry_run_times.py --table              # the result as a table

Run it on a quiet machine: the aim is under two seconds each. A preset that cannot be planned there is noted
with its message. The first start of all, which reads the files of the packages from disk, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from stepwell.config.presets import list_preset_names
from stepwell.runs.machine import describe_machine

RESULT = Path(__file__).parent / "results" / "dry_run.json"
LISTS = (["--help"], ["presets"], ["recipes"], ["envs", "list"])
LIMIT_S = 2.0


def measure(words: list[str], num_times: int) -> dict[str, Any]:
    """Seconds and processor seconds of each call, or the message of one that was refused."""
    seconds, cpu_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(num_times):
            began, cpu = time.perf_counter(), sum(os.times()[2:4])
            done = subprocess.run(
                [sys.executable, "-m", "stepwell", *words],
                cwd=folder,
                env=os.environ | {"STEPWELL_CACHE": folder},  # no model was built when the first call begins
                capture_output=True,
                text=True,
            )
            seconds.append(round(time.perf_counter() - began, 2))
            cpu_s.append(round(sum(os.times()[2:4]) - cpu, 2))
            if done.returncode:
                return {"refused": done.stderr.strip().splitlines()[-1]}
    return {"seconds": seconds, "cpu_s": cpu_s, "holds": max(seconds) < LIMIT_S}


def make_table() -> str:
    """The slowest call of each command, slowest first."""
    rows = json.loads(RESULT.read_text())["commands"].items()
    timed = {name: row["seconds"] for name, row in rows if "seconds" in row}
    lines = [
        f"| `stepwell {name}` | {median(seconds):.2f} s | {max(seconds):.2f} s |"
        for name, seconds in sorted(timed.items(), key=lambda item: -max(item[1]))
    ]
    return "\n".join(["| command | median | slowest |", "|---|---|---|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="print the result as a table; measure nothing")
    args = parser.parse_args()
    if args.table:
        print(make_table())
        return
    known = json.loads(RESULT.read_text())["commands"] if RESULT.exists() else {}
    presets = list_preset_names() if args.presets is None else args.presets
    commands = [["train", preset, "--dry-run"] for preset in presets]
    measure(["recipes"], 1)
    for words in commands if args.presets else [*LISTS, *commands]:
        name = " ".join(words)
        known[name] = measure(words, args.times)
        print(name, known[name], flush=True)
        whole = {"machine": describe_machine(), "commands": dict(sorted(known.items()))}
        RESULT.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
