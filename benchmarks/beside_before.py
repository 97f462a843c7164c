"""The benchmarks of one machine at two versions of the package, in turns.

Both versions run their own benchmark scripts with the same interpreter: credit and losses, packing (its short
sequences), the embedded engine (a few prompts), the gateway. `demo` is the demo of the old version, which the
new one has as the preset `frozenlake-easy`: the warm start, 54 updates and two evaluations. A turn is one
script at one version; give every script at least two turns at each version, old and new alternately. Times
are of the processor (user and system), so that other work on the machine counts less; of the gateway those
of its server. OpenMP gets one thread, because threads that spin while they wait count as work.

    python benchmarks/beside_before.py turn TREE LABEL SCRIPT FOLDER   one turn; its figures go to FOLDER
    python benchmarks/beside_before.py compare FOLDER OLD NEW          results/beside_before_rework.json,
                                                                       and the table of docs/structure.md

TREE is a checkout (`git worktree add`), LABEL its commit, SCRIPT one of credit, packing, engine, gateway,
demo, trl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "structure.md"
MARKS = ("<!-- beside before -->", "<!-- end of beside before -->")
RESULT = Path(__file__).parent / "results" / "beside_before_rework.json"
ARGUMENTS = {
    "credit": (),
    "packing": ("--repeats", "1"),
    "engine": ("--device", "cpu"),
    "gateway": ("--without", "litellm", "--rounds", "1", "--seconds", "4"),
    "demo": ("seed=0", "train.num_updates=54"),
    "trl": ("three turns", "640", "8", "16"),
}
# Runs a script's main with the processor's time as its clock, and has it write its results to another folder.
START = """
import sys, time; from pathlib import Path
tree, module, folder, *rest = sys.argv[1:]
sys.path[:0] = [tree + "/src", tree + "/benchmarks"]
if module != "gateway_speed":
    time.perf_counter = time.process_time
script = __import__(module)
if module == "packing_speed":
    script.SIZES = dict(list(script.SIZES.items())[:1])
if module == "engine_speed":
    whole = script.measure_cpu
    script.measure_cpu = lambda small: whole(True)
for name in ("RESULT", "RESULTS"):
    if hasattr(script, name):
        old = getattr(script, name)
        setattr(script, name, Path(folder) / old.name if name == "RESULT" else Path(folder))
sys.argv = [module, *rest]
script.main()
"""


# Writes the start and the job of our side of the comparison with TRL: demonstrations, updates, prompts.
START_TRL = """
import sys; from pathlib import Path
tree, folder, setup, *counts = sys.argv[1:]
sys.path[:0] = [tree + "/src", tree + "/benchmarks"]
import peer_trl
(options, _), (demos, updates, prompts) = peer_trl.SETUPS[setup], map(int, counts)
peer_trl.warm_start(options, demos, Path(folder) / "start")
peer_trl.write_job(Path(folder), Path(folder) / "start", options, updates, prompts, 1)
"""
# Our side's updates, with the processor's time as their clock.
RUN_TRL = """
import sys, time
tree, job = sys.argv[1:]
sys.path[:0] = [tree + "/src", tree + "/benchmarks", tree + "/benchmarks/peer_trl"]
time.perf_counter = time.process_time
import ours_worker
ours_worker.main(ours_worker.Job.read(job))
"""


def take_turn(tree: Path, label: str, script: str, folder: Path) -> None:
    number = len(list(folder.glob(f"{script}-{label}-*.json")))
    scratch = folder / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    for path in scratch.iterdir():
        path.unlink()
    environment = {**os.environ, "PYTHONPATH": f"{tree}/src", "OMP_NUM_THREADS": "1"}
    if script in ("demo", "trl"):
        figures = run_demo(tree, environment) if script == "demo" else run_trl(tree, environment)
        (scratch / f"{script}.json").write_text(json.dumps(figures))
    else:
        command = [
            sys.executable,
            "-c",
            START,
            str(tree),
            f"{script}_speed",
            str(scratch),
            *ARGUMENTS[script],
        ]
        subprocess.run(command, check=True, cwd=tree, env=environment)
    (written,) = scratch.glob("*.json")
    written.rename(folder / f"{script}-{label}-{number}.json")


def run_demo(tree: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Processor seconds of a whole short run, by its child processes, and its held-out success."""
    preset = "frozenlake-easy"
    if not (tree / f"src/stepwell/config/presets/{preset}.toml").exists():
        preset = "demo"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stepwell", "train", preset, *ARGUMENTS["demo"]]
        before = os.times()
        subprocess.run([*command, f"folder={folder}", "name=run"], check=True, cwd=folder, env=environment)
        after = os.times()
        entries = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        success = [row["eval/success"] for row in map(json.loads, entries) if "eval/success" in row]
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return {"cpu_s": seconds, "success": success}


def run_trl(tree: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Processor seconds of our updates from a start that its own version made, and the tokens sampled."""
    with tempfile.TemporaryDirectory() as folder:
        prepare = [sys.executable, "-c", START_TRL, str(tree), folder, *ARGUMENTS["trl"]]
        subprocess.run(prepare, check=True, env=environment)
        worker = [sys.executable, "-c", RUN_TRL, str(tree), f"{folder}/job.json"]
        subprocess.run(worker, check=True, env=environment)
        clock = json.loads((Path(folder) / "clock.json").read_text())
    return {"cpu_s": clock["ends"][-1], "tokens": clock["num_tokens"]}


def list_figures(script: str, result: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and processor seconds of everything that a script timed of our own code; less is better."""
    if script == "credit":
        for name, row in result["rows"].items():
            for key in ("fresh_s", "warm_s", "backward_s"):
                if key in row:
                    yield f"{name}, {key.removesuffix('_s')}", row[key]
    elif script == "packing":
        yield from ((row["lengths"], row["packed_s"]) for row in result["rows"])
    elif script == "engine":
        yield from ((f"{row['what']}: {row['setting']}", row["engine_s"]) for row in result["rows"])
    elif script == "trl":
        yield "our GRPO, three turns, 1,000 sampled tokens", 1000 * result["cpu_s"] / result["tokens"]
    elif script == "demo":
        yield f"warm start and {ARGUMENTS['demo'][1].rpartition('=')[2]} updates", result["cpu_s"]
    else:
        for row in result["rows"]:
            if row["side"] == "gateway":
                yield f"{row['sessions']} sessions, per call", row["cpu_ms_per_call"] / 1e3


def compare(folder: Path, old: str, new: str) -> dict[str, Any]:
    """Per figure: every turn, and the best turn of the new version over the best of the old one."""
    rows: list[dict[str, Any]] = []
    for script in ARGUMENTS:
        turns: dict[str, dict[str, list[float]]] = {old: {}, new: {}}
        for label, figures in turns.items():
            for path in sorted(folder.glob(f"{script}-{label}-*.json")):
                for name, seconds in list_figures(script, json.loads(path.read_text())):
                    figures.setdefault(name, []).append(seconds)
        for name in turns[old].keys() & turns[new].keys():
            before, after = turns[old][name], turns[new][name]
            ratio = min(after) / min(before)
            rows.append(
                {"script": script, "figure": name, "before_s": before, "after_s": after, "ratio": ratio}
            )
    rows.sort(key=lambda row: (row["script"], row["figure"]))
    return {
        "machine": f"{read_cpu()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "before": old,
        "after": new,
        "clock": "processor time, user and system",
        "ratio": "best turn after / best turn before; above 1 is slower",
        "median_ratio": {
            script: statistics.median(row["ratio"] for row in rows if row["script"] == script)
            for script in dict.fromkeys(row["script"] for row in rows)
        },
        "rows": rows,
    }


def write_table(result: dict[str, Any]) -> None:
    """The table of the page, between its marks."""
    rows = [
        "",
        f"Measured on {result['machine']}: {result['before']} and {result['after']}, processor time.",
        "",
        "| benchmark | figures | after / before, median | least | most |",
        "|---|---|---|---|---|",
    ]
    for script, median in result["median_ratio"].items():
        ratios = [row["ratio"] for row in result["rows"] if row["script"] == script]
        rows.append(f"| {script} | {len(ratios)} | {median:.2f} | {min(ratios):.2f} | {max(ratios):.2f} |")
    start, rest = PAGE.read_text().split(f"{MARKS[0]}\n")
    PAGE.write_text("\n".join([f"{start}{MARKS[0]}", *rows, "", MARKS[1]]) + rest.split(MARKS[1])[1])


def read_cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    turn = commands.add_parser("turn")
    turn.add_argument("tree", type=Path)
    turn.add_argument("label")
    turn.add_argument("script", choices=ARGUMENTS)
    turn.add_argument("folder", type=Path)
    both = commands.add_parser("compare")
    both.add_argument("folder", type=Path)
    both.add_argument("old")
    both.add_argument("new")
    args = parser.parse_args()
    if args.command == "turn":
        take_turn(args.tree.resolve(), args.label, args.script, args.folder.resolve())
        return
    result = compare(args.folder, args.old, args.new)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for row in result["rows"]:
        print(f"{row['script']:8} {row['figure']:70} {min(row['before_s']):9.5f} {row['ratio']:6.2f}")
    print(result["median_ratio"])
    write_table(result)


if __name__ == "__main__":
    main()
