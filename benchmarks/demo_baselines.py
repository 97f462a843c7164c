"""What else the time of a run could buy: other ways to learn, each with the same seconds of processor.

python benchmarks/demo_baselines.py                              three seeds, one after the other
python benchmarks/demo_baselines.py --preset demo --cpu-s 300 --seeds 0

arm                       from                     learns from
reinforcement             the warm start           its own episodes, by the preset's recipe
filtered BC               a warm start alike       its own episodes, only those that succeed
SFT, the same time        random weights           the demonstrations of the warm start
SFT, clean, the same time random weights           as many demonstrations of an expert without mistakes

Every arm of a seed has the same first weights, tasks and held-out tasks (the warm starts of the first two end
by the same rule; only that of a recipe with a critic teaches one), and may use `--cpu-s` seconds of
processor in all, on one thread: time on the clock says little on a machine that does other work, too.
Demonstrations and the looks at `warm_start.stop_at` count, evaluations do not.
Success is that on held-out tasks, decoded as in training.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Split
from stepwell.policies.numerics import set_numerics
from stepwell.rollout import Job
from stepwell.runs.build.components import Components
from stepwell.runs.build.warm_starts import has_goal, is_warm
from stepwell.runs.evaluation.held_out import evaluate
from stepwell.training import imitate
from stepwell.training.critics import prepare_critics

RESULT = Path(__file__).parent / "results" / "demo_baselines.json"
MANY = 1_000_000
ARMS: dict[str, list[str]] = {
    "reinforcement": [],
    "filtered BC": ["recipe.name=filtered-bc", 'recipe.reward_parts=["outcome"]', "rewards.scale=1.0"],
    "SFT, the same time": ["train.num_updates=0"],
    "SFT, clean, the same time": ["train.num_updates=0", "warm_start.noise=0.0"],
}


class Arm:
    """One arm of one seed; `curve` holds its held-out success over seconds of processor."""

    def __init__(self, config: RunConfig, cpu_s: float) -> None:
        set_numerics(1)
        self.config, self.limit_s, self.spent_s = config, cpu_s, 0.0
        self.components = Components(config)
        prepare_critics(self.components.policy, self.components.recipe)
        self.tasks = self.components.tasks(Split.TRAIN, config.train.num_tasks, config.seed)
        self.held_out = self.components.list_held_out_tasks()
        self.curve: list[dict[str, float]] = []
        self.explained: list[float] = []
        self._before: float | None = None
        self._version = 0

    def run(self, num_evals: int) -> dict[str, Any]:
        """Learn until the seconds are used; evaluates after the warm start, at intervals, and at the end."""
        due_s = list(np.linspace(0, self.limit_s, num_evals + 1)[1:-1])
        for has_started in self._learn():
            is_due = bool(due_s) and self.spent_s >= due_s[0]
            if is_due:
                due_s.pop(0)
            if has_started or is_due:
                self._measure()
            if has_started:
                self._before = self.curve[-1]["success"]
        self._measure()
        self.components.close()
        explained = float(np.mean(self.explained[-10:])) if self.explained else None
        return {
            "before": self._before,
            "after": self.curve[-1]["success"],
            "explained": explained,
            "curve": self.curve,
        }

    def _learn(self) -> Iterator[bool]:
        """Learn piece by piece; yields after each one, True when the warm start is over."""
        is_sft = self.config.train.num_updates == 0
        for _ in self._imitate(is_endless=is_sft):
            yield False
        if is_sft:
            return
        yield True
        update = 0
        while self.spent_s < self.limit_s and update < self.config.train.num_updates:
            update += 1
            self._reinforce(update)
            yield False

    def _imitate(self, *, is_endless: bool) -> Iterator[None]:
        components, config = self.components, self.config
        warm = config.warm_start
        began = time.process_time()
        shown = components.play_demonstrations(warm.num_demos, warm.noise, config.seed, warm.demos_per_task)
        if is_endless:
            warm = warm.model_copy(update={"epochs": MANY, "max_updates": None})
        for number, _ in enumerate(
            imitate(components.policy, shown, warm, config.seed, recipe=components.recipe), 1
        ):
            self.spent_s += time.process_time() - began
            yield
            began = time.process_time()
            is_checked = not is_endless and has_goal(warm) and number % warm.check_every == 0
            if self.spent_s >= self.limit_s or (is_checked and self._is_warm()):
                self.spent_s += time.process_time() - began
                return

    def _is_warm(self) -> bool:
        tasks = self.tasks[: max(1, self.config.eval.num_tasks // 2)]
        return is_warm(self.config.warm_start, self._play(tasks))

    def _play(self, tasks: Any) -> dict[str, float]:
        self._publish()
        return evaluate(self.components, tasks, temperature=self.config.eval.temperature).values()

    def _publish(self) -> None:
        self._version += 1
        self.components.engine.load_weights(self._version, self.components.policy.model_weights())

    def _reinforce(self, update: int) -> None:
        """One update from fresh episodes."""
        components, train, began = self.components, self.config.train, time.process_time()
        rng = np.random.default_rng([self.config.seed, update])
        chosen = rng.choice(len(self.tasks), train.tasks_per_update, replace=False)
        jobs = [
            Job(self.tasks[i], f"{update}-{i}", int(rng.integers(2**62)))
            for i in chosen
            for _ in range(train.group_size)
        ]
        self._publish()
        components.engine.forget()
        played = components.runner.rollout.run(
            jobs, components.sampling_params(self.config.sampling.temperature)
        )
        metrics = components.trainer.update(played.trajectories)
        if "explained_variance" in metrics:
            self.explained.append(metrics["explained_variance"])
        self.spent_s += time.process_time() - began

    def _measure(self) -> None:
        values = self._play(self.held_out)
        self.curve.append({"cpu_s": round(self.spent_s, 1), "success": values["success"]})
        print(f"  {self.spent_s:6.1f} s  {values['success']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="frozenlake-easy")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--cpu-s", type=float, default=300.0, help="seconds of processor for each arm")
    parser.add_argument("--evals", type=int, default=5, help="evaluations of each arm")
    parser.add_argument("--out", type=Path, default=RESULT, help="results are added to this file")
    parser.add_argument("settings", nargs="*", help="settings of every arm, key=value")
    args = parser.parse_args()
    known = json.loads(args.out.read_text()) if args.out.exists() else []
    for seed in args.seeds:
        for arm in args.arms:
            print(f"seed {seed}, {arm}", flush=True)
            config = load_config(args.preset, [f"seed={seed}", *args.settings, *ARMS[arm]])
            result = Arm(config, args.cpu_s).run(args.evals)
            about = {"preset": args.preset, "seed": seed, "arm": arm, "cpu_s": args.cpu_s}
            machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}
            machine |= {"load": os.getloadavg()[0]}
            known.append(about | {"settings": args.settings} | result | {"machine": machine})
            args.out.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
