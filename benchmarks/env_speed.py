"""Speed of the environments: turns per second of a batch, against Gymnasium's FrozenLake in the same run.

Batches of 64 environments play whole episodes of random turns (3 actions each), resets included; one
thread. `state` adds what a training step also asks for: the true state in every form after each
turn. Gymnasium's side steps the same boards (desc given), one action per call, three of them to a
turn, and resets when an episode ends. It is timed bare, and with the board drawn as text after
each turn (its `render_mode="ansi"`), which is what an agent would need to be shown.

    python benchmarks/env_speed.py            # the table, and results/env_speed.json
    python benchmarks/env_speed.py --seconds 0.2 --no-write
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console
from rich.table import Table

from stepwell.core import Split, Task
from stepwell.envs import EnvBatch, draw_tasks, find_env_type, make_env, read_options

RESULT = Path(__file__).parent / "results" / "env_speed.json"
BATCH = 64
ROUNDS = 5
Player = Callable[[], tuple[int, int]]  # plays some episodes; turns and actions they took
ROWS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("FrozenLake 4x4, text", "frozenlake", {}, False),
    ("FrozenLake 4x4, text and state", "frozenlake", {}, True),
    ("FrozenLake 4x4, image 128 px", "frozenlake", {"observation": "image"}, False),
    ("FrozenLake 8x8, text", "frozenlake", {"size": 8, "max_turns": 8}, False),
    ("Sokoban 6x6, text", "sokoban", {}, False),
    ("Sokoban 6x6, text and state", "sokoban", {}, True),
    ("Sokoban 6x6, image 192 px", "sokoban", {"observation": "image"}, False),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.5, help="time given to each row")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    players = {title: ours(name, options, told) for title, name, options, told in ROWS}
    players["Gymnasium FrozenLake 4x4, no text"] = gymnasiums(None)
    players["Gymnasium FrozenLake 4x4, board as text"] = gymnasiums("ansi")
    rows = measure_in_rounds(players, args.seconds)
    makers = [measure_tasks(name, options, args.seconds) for name, options in TASK_ROWS]
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, one thread",
        "gymnasium": gymnasium.__version__,
        "batch": BATCH,
        "rows": rows,
        "tasks": makers,
    }
    show(result)
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def measure_in_rounds(players: dict[str, Player], seconds: float) -> list[dict[str, Any]]:
    """The median of ROUNDS measurements of every row; rounds take turns, so that all share the noise."""
    for play in players.values():
        play()  # tiles, tables and caches are made once
    seen: dict[str, list[tuple[float, float]]] = {title: [] for title in players}
    for _ in range(ROUNDS):
        for title, play in players.items():
            seen[title].append(repeat(play, seconds / ROUNDS))
    return [
        {
            "name": title,
            "turns_per_s": round(statistics.median(turns for turns, _ in speeds)),
            "actions_per_s": round(statistics.median(actions for _, actions in speeds)),
        }
        for title, speeds in seen.items()
    ]


def repeat(play: Player, seconds: float) -> tuple[float, float]:
    """Turns and actions per second of `play`, called until the time is over."""
    num_turns = num_actions = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        turns, actions = play()
        num_turns += turns
        num_actions += actions
    spent = time.perf_counter() - start
    return num_turns / spent, num_actions / spent


def ours(name: str, options: dict[str, Any], told: bool) -> Player:
    """Random episodes of a batch; `told` asks for the state after every turn."""
    tasks = draw_tasks(name, options, Split.TRAIN, 512, seed=0)
    batch = EnvBatch(name, options, BATCH)
    rng = random.Random(0)
    names = batch.envs[0].description.actions.names
    turns_of = [tuple(rng.choices(names, k=3)) for _ in range(1000)]

    def play() -> tuple[int, int]:
        num_turns = num_actions = 0
        batch.reset(rng.sample(tasks, BATCH))
        live = list(range(BATCH))
        while live:
            turns = batch.step(live, rng.choices(turns_of, k=len(live)))
            num_turns += len(turns)
            num_actions += sum(turn.info["num_actions"] for turn in turns)
            if told:
                for index in live:
                    batch.envs[index].state()
            live = [index for index, turn in zip(live, turns, strict=True) if not turn.is_over]
        return num_turns, num_actions

    return play


def gymnasiums(render_mode: str | None) -> Player:
    """The same boards and turns in Gymnasium: up to three of its steps make one turn."""
    envs = [gymnasium_lake(task, render_mode) for task in draw_tasks("frozenlake", {}, Split.TRAIN, BATCH, 0)]
    rng = random.Random(0)

    def play() -> tuple[int, int]:
        num_turns = num_actions = 0
        for env in envs:
            env.reset()
            over = False
            for _ in range(3):
                for _ in range(3):
                    _, _, terminated, truncated, _ = env.step(rng.randrange(4))
                    num_actions += 1
                    over = terminated or truncated
                    if over:
                        break
                if render_mode:
                    env.render()
                num_turns += 1
                if over:
                    break
        return num_turns, num_actions

    return play


def gymnasium_lake(task: Task, render_mode: str | None) -> Any:
    rows = [list(row.replace("_", "F").replace("O", "H")) for row in task.content["board"]]
    for symbol, key in (("S", "start"), ("G", "goal")):
        row, column = task.content[key]
        rows[row][column] = symbol
    desc = ["".join(row) for row in rows]
    return gymnasium.make("FrozenLake-v1", desc=desc, is_slippery=False, render_mode=render_mode)


TASK_ROWS: list[tuple[str, dict[str, Any]]] = [
    ("frozenlake", {}),
    ("sokoban", {}),
    ("sokoban", {"num_boxes": 2, "max_turns": 6}),
]


def measure_tasks(name: str, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Tasks made per second, and solved per second by the oracle from their first state."""
    kind, settings = find_env_type(name), read_options(name, options)
    env = make_env(name, options)
    made, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds:
        made.append(kind.make_task(settings, len(made)))
    per_s = len(made) / (time.perf_counter() - start)
    num_solved, start = 0, time.perf_counter()
    for task in made:
        env.reset(options={"task": task})
        num_solved += bool(env.oracle())
        if time.perf_counter() - start > seconds:
            break
    solved_per_s = num_solved / (time.perf_counter() - start)
    return {
        "name": name,
        "options": options,
        "tasks_per_s": round(per_s),
        "solved_per_s": round(solved_per_s),
    }


def show(result: dict[str, Any]) -> None:
    console = Console()
    table = Table("environment", "turns/s", "actions/s", title=f"batch of {BATCH}; {result['machine']}")
    for row in result["rows"]:
        table.add_row(row["name"], f"{row['turns_per_s']:,}", f"{row['actions_per_s']:,}")
    console.print(table)
    table = Table("environment", "options", "tasks made/s", "solved/s (reset and oracle)")
    for row in result["tasks"]:
        cells = f"{row['tasks_per_s']:,}", f"{row['solved_per_s']:,}"
        table.add_row(row["name"], json.dumps(row["options"]), *cells)
    console.print(table)


if __name__ == "__main__":
    main()
