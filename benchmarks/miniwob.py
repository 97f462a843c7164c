"""How often players that have learnt nothing solve the click tasks of the preset miniwob-tiny in Chromium.

    script   the scripted solution
    random   the environment's random actions
    click    a click on one of the page's elements, each as likely
    first    always a click on the first element

The tasks are the held-out ones of the preset's evaluation. An agent that solves no more than these players
(but the script) has learnt nothing.

    python benchmarks/miniwob.py                # results/miniwob/players.json
"""

from __future__ import annotations

import argparse
import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepwell.config.presets import read_preset_text
from stepwell.core import Split
from stepwell.envs.base import Env
from stepwell.envs.registry import make_env
from stepwell.envs.tasks import draw_tasks
from stepwell.envs.web.actions import WebAction, print_action
from stepwell.envs.web.env import WebEnv
from stepwell.runs.build.components import HELD_OUT_SEED

RESULT = Path(__file__).parent / "results" / "miniwob" / "players.json"
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
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    options, rng = tomllib.loads(read_preset_text("miniwob-tiny"))["env"]["options"], random.Random(0)
    players: dict[str, Callable[[Env], str]] = {
        "script": lambda env: env.oracle()[0],
        "random": lambda env: str(env.random_action(rng)),
        "click": lambda env: click_some_element(env, rng),
        "first": lambda env: CLICK_FIRST,
    }
    tasks = draw_tasks("web", options, Split.HELD_OUT, args.tasks, seed=HELD_OUT_SEED)
    shares: dict[str, Any] = {}
    with make_env("web", options) as env:
        for name, choose in players.items():
            rewards = [play_task(env, task, choose) for task in tasks]
            pages: dict[str, list[float]] = {}
            for task, reward in zip(tasks, rewards, strict=True):
                pages.setdefault(str(task.content["page"]), []).append(float(reward >= 1.0))
            by_page = {page: round(sum(won) / len(won), 3) for page, won in sorted(pages.items())}
            shares[name] = {
                "solved": sum(reward >= 1.0 for reward in rewards) / len(rewards),
                "pages": by_page,
            }
            print(name, shares[name], flush=True)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps({"num_tasks": len(tasks), "players": shares}, indent=1) + "\n")


if __name__ == "__main__":
    main()
