"""Speed of the robot environments, and the share of Meta-World's tasks its scripted experts solve.

Speed: one copy of an environment, one thread; random chunks of 8 actions with observations of true positions,
and single actions with one camera image of 64 and of 128 pixels each. `reset` is that of a copy that
has played before, `open` the first reset of the first copy in the process (import, compilation) and
`next copy` that of a second one. Meta-World's own reset is timed beside ours.

Experts: each of Meta-World's tasks is played by its scripted expert from the first seeds, with a limit
of 300 actions; a task counts as solved within 100 or 200 by the number of actions it took.

    python benchmarks/robot_envs.py                     # both, and results/robot_envs.json
    python benchmarks/robot_envs.py --envs metaworld fetch --no-experts
    .venvs/libero/bin/python benchmarks/robot_envs.py --envs libero --no-experts

Environments whose package is missing are left out; their rows of an earlier run stay in the file.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from stepwell.core import ConfigError
from stepwell.envs import make_env
from stepwell.envs.robots.metaworld.text import INSTRUCTIONS

RESULT = Path(__file__).parent / "results" / "robot_envs.json"
ENVS: list[tuple[str, str, dict[str, Any]]] = [
    ("metaworld reach", "metaworld", {"task": "reach"}),
    ("metaworld push", "metaworld", {"task": "push"}),
    ("metaworld door-open", "metaworld", {"task": "door-open"}),
    ("fetch reach", "fetch", {"task": "reach"}),
    ("fetch push", "fetch", {"task": "push"}),
    ("robosuite Lift", "robosuite", {"task": "Lift"}),
    ("libero_spatial 0", "libero", {"task": 0, "camera": "agentview"}),
]
NO_LIMIT = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="*", default=sorted({name for _, name, _ in ENVS}))
    parser.add_argument("--seconds", type=float, default=3.0, help="time given to each figure")
    parser.add_argument("--num-tasks", type=int, default=5, help="seeds that each expert plays")
    parser.add_argument("--no-experts", action="store_true")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": [], "experts": []}
    result["machine"] = f"{platform.machine()}, Python {platform.python_version()}, one thread"
    speeds = {row["name"]: row for row in result["rows"]}
    for title, name, options in ENVS:
        if name in args.envs:
            try:
                speeds[title] = speed_of(title, name, options, args.seconds)
            except ConfigError as error:
                print(f"{title}: {error}")
    result["rows"] = [speeds[title] for title, _, _ in ENVS if title in speeds]
    if "metaworld" in args.envs and not args.no_experts:
        result["num_tasks"] = args.num_tasks
        result["experts"] = [expert_of(task, args.num_tasks) for task in sorted(INSTRUCTIONS)]
    show(result)
    if not args.no_write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")


def speed_of(title: str, name: str, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """One row: times to open and reset, actions per second with and without images."""
    free = {**options, "max_actions": NO_LIMIT}
    env = make_env(name, free)
    opened = timed(lambda: env.reset(seed=0))
    other = make_env(name, free)
    row: dict[str, Any] = {"name": title, "open_s": round(opened, 2)}
    row["next_copy_s"] = round(timed(lambda: other.reset(seed=0)), 3)
    other.close()
    env.step(np.zeros((8, env.description.action_dim)))  # what is compiled on first use
    row["reset_ms"] = round(
        1e3 * statistics.median(timed(lambda s=s: env.reset(seed=s)) for s in range(1, 9)), 2
    )
    if name == "metaworld":
        row["own_reset_ms"] = round(1e3 * own_reset(env), 1)
    row["actions_per_s"] = round(rate(env, 8, seconds), 1)
    env.close()
    for size in (64, 128):
        seen = make_env(name, {**free, "observation": "camera", "image_size": size})
        row[f"with_camera_{size}_per_s"] = round(rate(seen, 1, seconds), 1)
        seen.close()
    return row


def own_reset(env: Any) -> float:
    """Meta-World's own reset of the same task."""
    theirs = type(env._sim).__mro__[2]()
    theirs._freeze_rand_vec, theirs._last_rand_vec = True, np.array(env.task.content["vector"])
    theirs.reset()
    return statistics.median(timed(theirs.reset) for _ in range(8))


def rate(env: Any, chunk: int, seconds: float) -> float:
    """Actions per second of random play, in the median of five rounds."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    speeds = []
    for _ in range(5):
        num_actions, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds / 5:
            actions = rng.uniform(-1, 1, (chunk, env.description.action_dim)).astype(np.float32)
            _, _, terminated, _, info = env.step(actions)
            num_actions += info["num_actions"]
            if terminated:
                env.reset(seed=0)
        speeds.append(num_actions / (time.perf_counter() - start))
    return statistics.median(speeds)


def expert_of(task: str, num_tasks: int) -> dict[str, Any]:
    """How many of the first seeds the expert solves within 100, 200 and 300 actions."""
    env = make_env("metaworld", {"task": task, "max_actions": 300})
    lengths = []
    for seed in range(num_tasks):
        env.reset(seed=seed)
        terminated, num_actions = False, 0
        while not terminated:
            _, _, terminated, _, info = env.step(env.oracle()[None])
            num_actions += 1
        if info["success"]:
            lengths.append(num_actions)
    row: dict[str, Any] = {"task": task}
    row |= {f"within_{limit}": sum(length <= limit for length in lengths) for limit in (100, 200, 300)}
    return row | {"actions": round(statistics.median(lengths)) if lengths else None}


def timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def show(result: dict[str, Any]) -> None:
    console = Console()
    names = ["name", "open_s", "next_copy_s", "reset_ms", "own_reset_ms", "actions_per_s"]
    names += ["with_camera_64_per_s", "with_camera_128_per_s"]
    table = Table(*names, title=result["machine"])
    for row in result["rows"]:
        table.add_row(*(str(row.get(name, "")) for name in names))
    console.print(table)
    table = Table("task", "within_100", "within_200", "within_300", "actions", title="scripted experts")
    for row in result["experts"]:
        table.add_row(*map(str, row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
