"""What a newcomer runs first, by the printed commands alone: does it learn, and how long does it take?

    python benchmarks/first_runs.py --seeds 0 1 2      # results/first_runs.json
    python benchmarks/first_runs.py --workers 5 --name h200_machine    # many cores: two for each run
    python benchmarks/first_runs.py --cases tool_agent --seeds 2       # one more, beside what is there

NumberLine is cut out of README.md, the environment of `init env` is written by `stepwell init env`, and
the tool agent is trained by the commands of docs/own_agent.md. Each case must rise by at least
0.3 on held-out tasks, in under five minutes on two cores of a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from stepwell.runs.machine import describe_machine

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results"
STEPWELL = [sys.executable, "-m", "stepwell"]
RISE, LIMIT_S = 0.3, 300.0
NUM_CORES = 2


def prepare_number_line(folder: Path, seed: int) -> list[list[str]]:
    """README's environment, as printed."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (code,) = [block for block in blocks if "class NumberLine" in block]
    (folder / "my_module.py").write_text(code)
    return [[*STEPWELL, "train", "--env", "my_module:NumberLine", f"seed={seed}", "name=run"]]


def prepare_init_env(folder: Path, seed: int) -> list[list[str]]:
    """What `stepwell init env` writes, by the command that it prints."""
    told = subprocess.run(
        [*STEPWELL, "init", "env", "coin_walk"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout
    (line,) = [line for line in told.splitlines() if line.strip().startswith("stepwell train")]
    return [[*STEPWELL, *line.split()[1:], f"seed={seed}", "name=run"]]


def prepare_tool_agent(folder: Path, seed: int) -> list[list[str]]:
    """The tool agent, by the commands of its page."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    page = (ROOT / "docs" / "own_agent.md").read_text()
    lines = [line.split("  #")[0].split() for line in page.splitlines() if "examples/tool_agent" in line]
    python = [[sys.executable, *words[1:]] for words in lines if words and words[0] == "python"]
    train = [[*STEPWELL, *words[1:], f"seed={seed}"] for words in lines if words[:2] == ["stepwell", "train"]]
    train[-1].append("name=run")
    return [*python, *train]


CASES = {
    "number_line": prepare_number_line,
    "init_env": prepare_init_env,
    "tool_agent": prepare_tool_agent,
}


def measure(case: str, seed: int, first_core: int) -> dict[str, Any]:
    """One case from an empty folder: held-out success before and after, and all of its time."""
    cores = f"{first_core}-{first_core + NUM_CORES - 1}"
    env = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(NUM_CORES)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        commands = CASES[case](folder, seed)
        began = time.perf_counter()
        for command in commands:
            subprocess.run(["taskset", "-c", cores, *command], cwd=folder, check=True, env=env)
        seconds = time.perf_counter() - began
        summary = json.loads((folder / "runs" / "run" / "summary.json").read_text())
    before, after = summary["before"], summary["after"]
    return {
        "case": case,
        "seed": seed,
        "before": before,
        "after": after,
        "rise": after["success"] - before["success"],
        "seconds": round(seconds, 1),
        "num_updates": summary["num_updates"],
        "holds": after["success"] - before["success"] >= RISE and seconds < LIMIT_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time, two cores for each")
    parser.add_argument("--name", help="of the result: first_runs_NAME.json")
    args = parser.parse_args()
    result = RESULTS / ("first_runs.json" if args.name is None else f"first_runs_{args.name}.json")
    free_cores: Queue[int] = Queue()
    for worker in range(args.workers):
        free_cores.put(worker * NUM_CORES)
    machine = describe_machine()
    known = json.loads(result.read_text()) if result.exists() else {"machine": machine}
    rows = {(row["case"], row["seed"]): row for row in known.get("runs", ()) if known["machine"] == machine}

    def measure_on_free_cores(case: str, seed: int) -> None:
        first_core = free_cores.get()
        rows[case, seed] = measure(case, seed, first_core)
        free_cores.put(first_core)
        kept = [rows[key] for key in sorted(rows)]
        result.write_text(json.dumps({"machine": machine, "runs": kept}, indent=2) + "\n")

    with ThreadPoolExecutor(args.workers) as pool:
        pending = [
            pool.submit(measure_on_free_cores, case, seed) for case in args.cases for seed in args.seeds
        ]
        for future in pending:
            future.result()
    for _, row in sorted(rows.items()):
        figures = f"{row['before']['success']:.2f} -> {row['after']['success']:.2f}"
        print(
            f"{row['case']:<12} seed {row['seed']}  {figures}  {row['seconds']:.0f} s  holds: {row['holds']}"
        )


if __name__ == "__main__":
    main()
