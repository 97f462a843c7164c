"""How long `stepwell train PRESET --dry-run` takes, from the start of the process to its end.

    python benchmarks/dry_run_times.py                      # every preset, three times
    python benchmarks/dry_run_times.py --presets demo web   # these, added to the result that is there

Run it on a quiet machine. A preset that cannot be planned there is noted with its message.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stepwell.config.presets import preset_names
from stepwell.runs.machine import describe_machine

RESULT = Path(__file__).parent / "results" / "dry_run.json"


def measure(preset: str, num_times: int) -> dict[str, Any]:
    """Seconds of each call, or the message of one that was refused."""
    command = [sys.executable, "-m", "stepwell", "train", preset, "--dry-run"]
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(num_times):
            began = time.perf_counter()
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            seconds.append(round(time.perf_counter() - began, 2))
            if done.returncode:
                return {"refused": done.stderr.strip().splitlines()[-1]}
    return {"seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=preset_names(), default=preset_names())
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    known = json.loads(RESULT.read_text())["presets"] if RESULT.exists() else {}
    for preset in args.presets:
        known[preset] = measure(preset, args.times)
        print(preset, known[preset], flush=True)
        whole = {"machine": describe_machine(), "presets": dict(sorted(known.items()))}
        RESULT.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
