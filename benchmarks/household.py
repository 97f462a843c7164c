"""Household: how fast it is, how long its tasks take to make and to plan, and who solves how many of them.

Players: on held-out tasks of each size and side, the oracle (shortest plan, all known), the explorer (knows
only what it has seen), and random play over the possible commands; success, and the mean number of turns of
the explorer beside the golden steps. Speed: one copy on one thread; random play, resets left out; `reset`
includes the plan that tells the golden steps. `bytes` is the mean and the longest observation of random play.

Environments of others: turns per second of random play, resets left out, and the seconds of a reset, in
ScienceWorld, TextWorldExpress and ALFWorld's engine (which plays households made here), where those are
installed; rows of an earlier run stay in the file, so that each can be run in its own environment.

    python benchmarks/household.py                                  # the tables, and results/household.json
    python benchmarks/household.py --num-tasks 20 --seconds 0.2 --no-write
    .venvs/scienceworld/bin/python benchmarks/household.py --others-only
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.core import ConfigError, Split, Task
from stepwell.envs import draw_tasks, make_env
from stepwell.envs.household.alfworld import write_game
from stepwell.envs.household.env import Household
from stepwell.envs.household.options import HouseholdOptions

RESULT = Path(__file__).parent / "results" / "household.json"
SIDES = [(size, side) for size in ("full", "tiny") for side in ("seen", "unseen")]
SCIENCE, EXPRESS = (
    "stepwell.envs.scienceworld_env:ScienceWorld",
    "stepwell.envs.textworld_express_env:TextWorldExpress",
)
OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("scienceworld find-plant", SCIENCE, {"tasks": ["find-plant"]}),
    ("scienceworld, all valid listed", SCIENCE, {"tasks": ["find-plant"], "commands": "all"}),
    ("textworld_express cookingworld", EXPRESS, {"game": "cookingworld"}),
    ("textworld_express twc", EXPRESS, {"game": "twc"}),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-tasks", type=int, default=500, help="held-out tasks of each size and side")
    parser.add_argument("--seconds", type=float, default=5.0, help="time given to each speed")
    parser.add_argument("--others-only", action="store_true", help="leave the rows of our own environments")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {"play": [], "speed": [], "others": []}
    result["machine"] = f"{platform.machine()}, Python {platform.python_version()}, one thread"
    if not args.others_only:
        result["play"] = [play(size, side, args.num_tasks) for size, side in SIDES]
        result["speed"] = [speed(size, args.seconds) for size in ("full", "tiny")]
    rows = {row["world"]: row for row in result["others"]} | others(args.seconds)
    result["others"] = list(rows.values())
    show(result)
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def play(size: str, side: str, num_tasks: int) -> dict[str, Any]:
    """One row: who solves how many held-out tasks."""
    options = {"size": size, "held_out": side}
    start = time.perf_counter()
    tasks = draw_tasks("household", options, Split.HELD_OUT, num_tasks, seed=0)
    drawn_s = time.perf_counter() - start
    rng = random.Random(0)
    oracle = [episode(make_env("household", options), task, None) for task in tasks]
    explorer_env = make_env("household", options | {"oracle": "explorer"})
    explorer = [episode(explorer_env, task, None) for task in tasks]
    chance = [episode(make_env("household", options), task, rng) for task in tasks]
    golden = Counter(turns for _, turns in oracle)
    solved = [turns for success, turns in explorer if success]
    families = Counter(task.tags[0] for task in tasks)
    won = Counter(task.tags[0] for task, (success, _) in zip(tasks, explorer, strict=True) if success)
    return {
        "size": size,
        "side": side,
        "num_tasks": num_tasks,
        "draw_ms_per_task": round(1e3 * drawn_s / num_tasks, 2),
        "oracle": share(oracle),
        "explorer": share(explorer),
        "explorer_by_family": {name: round(won[name] / families[name], 3) for name in sorted(families)},
        "random": share(chance),
        "golden_steps": {str(steps): count for steps, count in sorted(golden.items())},
        "golden_mean": round(statistics.mean(turns for _, turns in oracle), 2),
        "explorer_turns_mean": round(statistics.mean(solved), 2),
    }


def episode(env: Any, task: Task, rng: random.Random | None) -> tuple[bool, int]:
    """Success and turns of one episode: by the oracle, or by chance where `rng` is given."""
    env.reset(options={"task": task})
    plan: list[str] = []
    for turn in range(1, env.description.max_turns + 1):
        plan = plan[1:] or ([] if rng else env.oracle())
        _, _, over, _, info = env.step([env.random_action(rng)] if rng else plan[:1])
        if over:
            return bool(info["success"]), turn
    raise AssertionError("an episode without an end")


def speed(size: str, seconds: float) -> dict[str, Any]:
    """One row: times of making, planning and playing, and how long observations are."""
    options, rng = HouseholdOptions(size=size), random.Random(0)  # type: ignore[arg-type]
    made = [timed(lambda s=s: Household.make_task(options, s)) for s in range(100)]
    env, resets, lengths, num_turns, spent = Household(options), [], [], 0, 0.0
    stop = time.perf_counter() + seconds
    seed = 0
    while time.perf_counter() < stop:
        task = Household.make_task(options, seed)
        resets.append(timed(lambda task=task: env.reset(options={"task": task})))
        start, over = time.perf_counter(), False
        while not over:
            observation, _, over, _, _ = env.step([env.random_action(rng)])
            lengths.append(len(observation.text))
            num_turns += 1
        spent += time.perf_counter() - start
        seed += 1
    return {
        "size": size,
        "turns_per_s": round(num_turns / spent),
        "reset_ms": round(1e3 * statistics.median(resets), 2),
        "make_task_ms": round(1e3 * statistics.median(made), 2),
        "observation_bytes_mean": round(statistics.mean(lengths)),
        "observation_bytes_max": max(lengths),
    }


def others(seconds: float) -> dict[str, dict[str, Any]]:
    """Rows of the environments nobody here wrote, where they are installed."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(3):
            try:
                task = Household.make_task(HouseholdOptions(), seed)
                write_game(task, Path(folder) / f"{seed}" / "game.tw-pddl")
            except ConfigError as error:
                print(f"alfworld: {error}")
                break
        games = [("alfworld's engine", "household", {"games": folder})]
        for title, name, options in OTHERS + (games if list(Path(folder).iterdir()) else []):
            try:
                rows[title] = foreign(title, name, options, seconds)
            except ConfigError as error:
                print(f"{title}: {error}")
    return rows


def foreign(title: str, name: str, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One row: random play, its choice of commands included."""
    rng = random.Random(0)
    with make_env(name, options) as env:
        opened = timed(lambda: env.reset(seed=0))
        resets, num_turns, spent, seed = [], 0, 0.0, 0
        while spent < seconds:
            seed += 1
            resets.append(timed(lambda seed=seed: env.reset(seed=seed % 3)))
            start, over = time.perf_counter(), False
            while not over and spent + time.perf_counter() - start < seconds:
                _, _, over, _, _ = env.step([env.random_action(rng)])
                num_turns += 1
            spent += time.perf_counter() - start
    return {
        "world": title,
        "open_s": round(opened, 2),
        "reset_s": round(statistics.median(resets), 3),
        "turns_per_s": round(num_turns / spent, 1),
    }


def timed(work: Any) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def share(episodes: list[tuple[bool, int]]) -> float:
    """Of episodes that succeeded."""
    return round(sum(success for success, _ in episodes) / len(episodes), 3)


def show(result: dict[str, Any]) -> None:
    """The tables."""
    console = Console(width=150)
    for name in ("play", "speed", "others"):
        rows = result[name]
        if not rows:
            continue
        columns = [column for column in rows[0] if not isinstance(rows[0][column], dict)]
        table = Table(*columns, title=f"{name} ({result['machine']})")
        for row in rows:
            table.add_row(*(str(row[column]) for column in columns))
        console.print(table)
    for row in result["play"]:
        steps = ", ".join(f"{steps}: {count}" for steps, count in row["golden_steps"].items())
        console.print(
            f"{row['size']} {row['side']}: golden steps {steps}; explorer {row['explorer_by_family']}"
        )


if __name__ == "__main__":
    main()
