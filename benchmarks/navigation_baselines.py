"""What play that does not look scores in Navigation: rooms of VAGEN's two studies, and others.

    python benchmarks/navigation_baselines.py

Random play, the best fixed plan for training rooms, and the oracle, on the study's number of held-out rooms.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.config.study import load_study, plan_runs
from stepwell.core import Split, Task
from stepwell.core.disk import atomic_write
from stepwell.envs.baselines import find_blind_plan, measure_random_play
from stepwell.envs.check_episodes import follow_oracle
from stepwell.envs.registry import make_env
from stepwell.runs.build.components import Components

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks/results/vagen-environments/navigation-baselines.json"
NUM_TRAINING, NUM_HELD_OUT = 1024, 128


def measure_blind_play(config: RunConfig, **changes: Any) -> dict[str, Any]:
    """The best plan that never looks, and random play, with some options changed."""
    options = config.env.options | {"observation": "text"} | changes  # nothing is rendered
    env = config.env.model_copy(update={"options": options})
    components = Components(config.model_copy(update={"env": env}))
    training = components.tasks(Split.TRAIN, NUM_TRAINING, 0)
    held_out = components.list_held_out_tasks(NUM_HELD_OUT)
    blind = find_blind_plan("navigation", options, training, held_out, beam_width=500)
    return {
        "oracle_success": measure_oracle(options, held_out),
        "blind_plan": list(blind.actions),
        "blind_plan_success": round(blind.success, 4),
        "random_play_success": round(measure_random_play("navigation", options, held_out, seed=0), 4),
    }


def measure_oracle(options: dict[str, Any], tasks: Sequence[Task]) -> float:
    """The share of tasks that the oracle solves."""
    with make_env("navigation", options) as env:
        return sum(follow_oracle(env, task)[0] for task in tasks) / len(tasks)


def read_rooms(study: str) -> RunConfig:
    """Settings of a study's runs in Navigation."""
    file = ROOT / "studies" / study
    planned = plan_runs(load_study(file), file.parent, Path("runs"))
    return next(run.config for run in planned if run.env == "navigation")


def main() -> None:
    first = read_rooms("vagen_environments.toml")
    content = {
        "how": f"{NUM_TRAINING} training rooms for the plan, {NUM_HELD_OUT} held-out rooms",
        "study": measure_blind_play(first),
        "study without target_in_view": measure_blind_play(first, target_in_view=False),
        "second study": measure_blind_play(read_rooms("vagen_three_environments.toml")),
        "preset navigation-visual": measure_blind_play(load_config("navigation-visual", [])),
    }
    atomic_write(RESULT, json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
