"""What play that does not look scores in the Navigation of `studies/vagen_environments.toml`.

    python benchmarks/navigation_baselines.py

Random play, and the best fixed plan for training rooms, on the study's held-out rooms.
"""

from __future__ import annotations

import json
from pathlib import Path

from stepwell.config.study import load_study, plan_runs
from stepwell.core import Split
from stepwell.core.disk import atomic_write
from stepwell.envs.baselines import find_blind_plan, measure_random_play
from stepwell.runs.build.components import Components

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks/results/vagen-environments/navigation-baselines.json"
NUM_TRAINING = 1024


def main() -> None:
    file = ROOT / "studies/vagen_environments.toml"
    planned = plan_runs(load_study(file), file.parent, Path("runs"))
    config = next(run.config for run in planned if run.env == "navigation")
    components = Components(config)
    training, held_out = components.tasks(Split.TRAIN, NUM_TRAINING, 0), components.list_held_out_tasks()
    options = config.env.options | {"observation": "text"}  # nothing is rendered
    blind = find_blind_plan("navigation", options, training, held_out)
    content = {
        "how": f"{len(training)} training rooms for the plan, {len(held_out)} held-out rooms",
        "blind_plan": list(blind.actions),
        "blind_plan_success": blind.success,
        "random_play_success": measure_random_play("navigation", options, held_out, seed=0),
    }
    atomic_write(RESULT, json.dumps(content, indent=1) + "\n")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
