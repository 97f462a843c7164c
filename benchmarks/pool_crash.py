"""Whether a pool loses a step or serves a group twice when its writers and readers are killed at random.

Runs `tests/pool/crashing.py` on a new SQLite file and on a private PostgreSQL server, some of whose own
processes are killed, too. Three writers and two readers are killed by SIGKILL and started again, so many
times altogether; then the audit compares what was accepted with what is stored, and what the checkpoints
hold with what was complete. One step lost or changed, one group served twice or never, and this fails and
writes nothing: a figure in the file is one of an audit that passed.

    python benchmarks/pool_crash.py                  # 200 kills each, and results/pool_crash.json; a minute
    python benchmarks/pool_crash.py --kills 20 --no-write
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.pool.postgres import MISSING, binaries, database, server

RESULT = Path(__file__).parent / "results" / "pool_crash.json"
SCRIPT = Path(__file__).parent.parent / "tests" / "pool" / "crashing.py"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="of writers and readers, in each database")
    parser.add_argument("--seed", type=int, default=0, help="of the choice whom to kill, and when")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    rows = []
    for name, place, options in places():
        row = {"database": name, **crashed(place, ["--kills", str(args.kills), *options], args.seed)}
        print(json.dumps(row), flush=True)
        rows.append(row)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "seed": args.seed,
        "rows": rows,
    }
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def places() -> Iterator[tuple[str, str, list[str]]]:
    """A new pool in each database, and what its kills are."""
    with tempfile.TemporaryDirectory() as folder:
        yield "SQLite", f"{folder}/pool.db", []
    if binaries() is None:
        sys.exit(MISSING)
    with server() as url, database(url) as place:
        yield "PostgreSQL", place, ["--kill-server"]


def crashed(place: str, options: list[str], seed: int) -> dict[str, Any]:
    """The figures of a run that passed its audit; its processes print what went wrong themselves."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SCRIPT), place, folder, *options, "--seed", str(seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "seconds": round(time.perf_counter() - start, 1)}


if __name__ == "__main__":
    main()
