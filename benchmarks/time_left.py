"""How right the time left is that a run tells, from the first value to the last.

    python benchmarks/time_left.py train demo num_threads=1
    python benchmarks/time_left.py train --env my_module.py:NumberLine num_threads=1

Runs the command in this process with the time of the processor as its clock, so that other work on the
machine counts little, and compares each value with what was then really left. The aim: within 1.5 times for
nearly all of a run. Values told less than two seconds before the end are not compared. The result is added to
`results/time_left.json`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from stepwell.cli.main import main as run_command
from stepwell.monitors.base import LogEntry
from stepwell.monitors.console import ConsoleMonitor
from stepwell.runs.machine import describe_machine

RESULT = Path(__file__).parent / "results" / "time_left.json"
FACTOR, LAST_S = 1.5, 2.0


def compare(told: list[tuple[float, LogEntry]], end_s: float) -> dict[str, Any]:
    """Each value told over the true one."""
    rows = [(at_s, entry, entry.left_s / (end_s - at_s)) for at_s, entry in told if entry.left_s is not None]
    kept = [row for row in rows if end_s - row[0] > LAST_S]
    return {
        "seconds": round(end_s, 1),
        "values": len(kept),
        "within": sum(1 / FACTOR <= ratio <= FACTOR for *_, ratio in kept),
        "first": [round(ratio, 2) for *_, ratio in kept[:3]],
        "least": round(min(ratio for *_, ratio in kept), 2),
        "most": round(max(ratio for *_, ratio in kept), 2),
        "told": [[round(at_s, 1), entry.kind, entry.update, round(ratio, 2)] for at_s, entry, ratio in kept],
    }


def main() -> None:
    words = sys.argv[1:]
    time.perf_counter = time.process_time
    told: list[tuple[float, LogEntry]] = []
    record = ConsoleMonitor.record

    def watch(self: ConsoleMonitor, entry: LogEntry) -> None:
        told.append((time.process_time(), entry))
        record(self, entry)

    ConsoleMonitor.record = watch  # type: ignore[method-assign]
    if code := run_command(words):
        sys.exit(code)
    found = compare(told, time.process_time())
    known = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else {}
    known[" ".join(words)] = found | {"machine": describe_machine()}
    RESULT.write_text(json.dumps({"runs": dict(sorted(known.items()))}, indent=1) + "\n")
    print({name: value for name, value in found.items() if name != "told"})


if __name__ == "__main__":
    main()
