"""How often players that have learnt nothing solve the click tasks of the preset miniwob-tiny in Chromium.

    script   the scripted solution
    random   the environment's random actions
    click    a click on one of the page's elements, each as likely
    first    always a click on the first element

The tasks are the held-out ones of the preset's evaluation. An agent that solves no more than these players
(but the script) has learnt nothing.

    python benchmarks/miniwob.py                # results/miniwob/players.json
    python benchmarks/miniwob.py --runs DIR …   # results/miniwob/by_page.json: what runs of the preset solved
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.config.presets import read_preset_text
from stepwell.core import Split, Task
from stepwell.envs.base import Env
from stepwell.envs.registry import make_env
from stepwell.envs.tasks import draw_tasks
from stepwell.envs.web.actions import WebAction, print_action
from stepwell.envs.web.env import WebEnv
from stepwell.runs.build.components import HELD_OUT_SEED

RESULT = Path(__file__).parent / "results" / "miniwob" / "players.json"
BY_PAGE = RESULT.with_name("by_page.json")
CLICK_FIRST = 'do(action="Click", element="1")'


def play_task(env: Env, task: Any, choose: Callable[[Env], str]) -> float:
    """Play one episode; its reward."""
    env.reset(options={"task": task})
    reward, is_over = 0.0, False
    while not is_over:
        _, reward, terminated, truncated, _ = env.step([choose(env)])
        is_over = terminated or truncated
    return reward


def click_some_element(env: Env, rng: random.Random) -> str:
    """A click on an element of the page, whichever."""
    assert isinstance(env, WebEnv)
    view, _ = env._require_view()
    return print_action(WebAction("click", rng.choice(view.elements).id))


def main() -> None:
    """Play the tasks with every player and write the shares that are solved."""
    parser = argparse.ArgumentParser(description="Players without a model on MiniWoB++'s click tasks.")
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--output", type=Path, help="default: as above")
    parser.add_argument("--runs", nargs="+", type=Path, help="only count what these runs solved at their end")
    args = parser.parse_args()
    options = tomllib.loads(read_preset_text("miniwob-tiny"))["env"]["options"]
    tasks = draw_tasks("web", options, Split.HELD_OUT, args.tasks, seed=HELD_OUT_SEED)
    if args.runs:
        found = {run.name: count_solved(run, tasks) for run in args.runs}
        write_result(args.output or BY_PAGE, {"num_tasks": len(tasks), "runs": found})
    else:
        shares = play_all(options, tasks)
        write_result(args.output or RESULT, {"num_tasks": len(tasks), "players": shares})


def play_all(options: dict[str, Any], tasks: list[Task]) -> dict[str, Any]:
    """What every player solves, of all tasks and by page."""
    rng = random.Random(0)
    players: dict[str, Callable[[Env], str]] = {
        "script": lambda env: env.oracle()[0],
        "random": lambda env: str(env.random_action(rng)),
        "click": lambda env: click_some_element(env, rng),
        "first": lambda env: CLICK_FIRST,
    }
    shares: dict[str, Any] = {}
    with make_env("web", options) as env:
        for name, choose in players.items():
            won = {task.id: play_task(env, task, choose) >= 1.0 for task in tasks}
            shares[name] = {"solved": sum(won.values()) / len(won), "pages": group_by_page(won, tasks)}
            print(name, shares[name], flush=True)
    return shares


def count_solved(run: Path, tasks: list[Task]) -> dict[str, Any]:
    """What a run solved in its last evaluation, of all tasks and by page."""
    episodes = map(json.loads, (run / "eval_episodes.jsonl").read_text().splitlines())
    won = {episode["task"]: bool(episode["success"]) for episode in episodes}
    return {"solved": sum(won.values()) / len(won), "pages": group_by_page(won, tasks)}


def group_by_page(won: dict[str, bool], tasks: list[Task]) -> dict[str, float]:
    """The share of each page's tasks that were solved."""
    pages: dict[str, list[bool]] = {}
    for task in tasks:
        pages.setdefault(str(task.content["page"]), []).append(won[task.id])
    return {page: round(sum(solved) / len(solved), 3) for page, solved in sorted(pages.items())}


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result with the machine that it is of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": platform.machine(), **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
