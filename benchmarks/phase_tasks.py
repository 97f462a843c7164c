"""How many tasks each phase of runs had, where they came from, and why candidates were dropped.

Runs write one line at the end of a phase; this collects them from the `metrics.jsonl` of many runs.

    python benchmarks/phase_tasks.py runs/webrl-small/E/runs/*      # results/webrl_small/phases.json
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from stepwell.monitors.jsonl import read_entries

RESULT = Path(__file__).parent / "results" / "webrl_small" / "phases.json"
LINE = re.compile(
    r"phase (\d+) \(updates .*?: (?P<success>[\d.]+) of \d+ episodes solved; tasks: (?P<tasks>[^;]+)"
)
DROPPED = re.compile(r"; dropped: ([^;]+)")


def read_counts(text: str) -> dict[str, int]:
    """`114 sibling, 41 harder` as a table."""
    return {words: int(count) for count, words in (item.split(" ", 1) for item in text.split(", "))}


def read_phases(run: Path) -> list[dict[str, Any]]:
    """The phases of a run that came to their end."""
    found = []
    for entry in read_entries(run / "metrics.jsonl"):
        text = entry.text if entry.kind == "event" else ""
        if match := LINE.match(text):
            dropped = DROPPED.search(text)
            found.append(
                {
                    "success": float(match["success"]),
                    "tasks": read_counts(match["tasks"]),
                    "dropped": read_counts(dropped[1]) if dropped else {},
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    args = parser.parse_args()
    runs = {run.name: phases for run in sorted(args.runs) if (phases := read_phases(run))}
    longest = max(map(len, runs.values()))
    whole = [[sum(each["tasks"].values()) for each in p] for p in runs.values() if len(p) == longest]
    columns = [{"median": median(c), "least": min(c), "most": max(c)} for c in zip(*whole, strict=True)]
    result = {"whole_runs": len(whole), "tasks_by_phase": columns, "runs": runs}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(columns))


if __name__ == "__main__":
    main()
