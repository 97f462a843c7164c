"""Where the time of one step of a web agent goes: page, simplification, model.

The oracles of a preset play its own tasks, so that prompts and replies are as long as those of an agent that
solves them. The model then reads the same prompts and writes as many tokens, turn by turn.

    page         the environment's step without simplification: action, site, parser, observation
    browser      Chromium and Playwright's process during these steps; nothing with the light driver
    simplify     the page as the agent sees it
    model        prefill and decoding, one agent alone, or all episodes at once and then by step

Times are milliseconds per step. They are processor time, of all processes, so that a crowded machine changes
them little. A model on a GPU works elsewhere: there the clock counts. Steps are made one after the other.

    python benchmarks/web_step_parts.py                                   # web-tiny, in the light driver
    python benchmarks/web_step_parts.py --set env.options.driver=chromium # the same in Chromium
    python benchmarks/web_step_parts.py --preset web --episodes 1 --set env.options.driver=chromium  # SmolLM2
"""

from __future__ import annotations

import argparse
import json
import platform
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rollout_tokens import Episodes, play_turns
from web_parity import count_cpu_s
from web_speed import time_calls

from stepwell.config.loading import load_config
from stepwell.envs.web import chromium, tabs
from stepwell.envs.web.env import WebEnv
from stepwell.runs.build.components import Components

RESULT = Path(__file__).parent / "results" / "web_step_parts.json"


def play_oracles(components: Components, count: int) -> tuple[Episodes, dict[str, float]]:
    """Prompts and lengths of replies, and the milliseconds of a step by part."""
    spent, lock = Counter[str](), threading.Lock()
    is_light = components.config.env.options.get("driver", "light") == "light"
    inner = WebEnv.step

    def step(env: WebEnv, actions: Any) -> Any:
        with lock:
            elsewhere = 0.0 if is_light else count_cpu_s(with_own=False)
            began = time.process_time()
            try:
                return inner(env, actions)
            finally:
                spent["step"] += time.process_time() - began
                spent["browser"] += 0.0 if is_light else count_cpu_s(with_own=False) - elsewhere

    WebEnv.step = step  # type: ignore[method-assign]
    try:
        with time_calls({"simplify": (tabs if is_light else chromium, "simplify_page")}, spent):
            shown = components.play_demonstrations(count, 0.0, 0)
    finally:
        WebEnv.step = inner  # type: ignore[method-assign]
    episodes = [[(step.state, step.num_units) for step in one.steps] for one in shown]
    num_steps = sum(map(len, episodes))
    page = {
        "page_ms": 1000 * (spent["step"] - spent["simplify"]) / num_steps,
        "browser_ms": 1000 * spent["browser"] / num_steps,
        "simplify_ms": 1000 * spent["simplify"] / num_steps,
    }
    return episodes, page  # type: ignore[return-value]


def time_model(components: Components, groups: list[Episodes]) -> float:
    """Milliseconds per step of a model that plays these groups one after the other."""
    engine: Any = components.engine
    read_time = time.process_time if components.config.policy.device == "cpu" else time.perf_counter
    play_turns(engine, [episode[:1] for episode in groups[0]])  # warm
    began = read_time()
    for group in groups:
        play_turns(engine, group)
    return 1000 * (read_time() - began) / sum(len(episode) for group in groups for episode in group)


def main() -> None:
    """Measure one preset and add its row to the file of results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="web-tiny")
    parser.add_argument("--episodes", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], help="further settings")
    parser.add_argument("--output", type=Path, default=RESULT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(args.preset, [f"policy.device={args.device}", *args.set])
    components = Components(config)
    try:
        episodes, row = play_oracles(components, args.episodes)
        row["model_alone_ms"] = time_model(components, [[episode] for episode in episodes])
        if len(episodes) > 1:
            row["model_together_ms"] = time_model(components, [episodes])
    finally:
        components.close()
    turns = [turn for episode in episodes for turn in episode]
    found = {
        "preset": args.preset,
        "driver": config.env.options.get("driver", "light"),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else platform.machine(),
        "threads": 1,
        "episodes": len(episodes),
        "steps": len(turns),
        "prompt_tokens": sum(state.prompt_ids.size for state, _ in turns) / len(turns),
        "reply_tokens": sum(count for _, count in turns) / len(turns),
        **{name: round(value, 3) for name, value in row.items()},
    }
    print(json.dumps(found, indent=2))
    rows = json.loads(args.output.read_text()) if args.output.exists() else []
    keys = ("preset", "driver", "device")
    kept = [one for one in rows if any(one[key] != found[key] for key in keys)]
    args.output.write_text(json.dumps([*kept, found], indent=2) + "\n")


if __name__ == "__main__":
    main()
