"""How often an outcome model is right about episodes of our own web, with the sites' checkers as truth.

Episodes come from scripted players of five kinds, so that a failure is not told by its looks alone:

    oracle    the scripted solution
    noisy     each action is replaced by a random one with probability 0.2; the script goes on if it can
    early     the script stops halfway and exits as if it had finished
    sibling   the script of another task of the same template: a clean episode that does the wrong thing
    random    random play

Training episodes are on training tasks, the measured ones on held-out templates and parameters. Beside the
trained model stand trivial judges. Truth is the checker's verdict; the kind of player is not in the question.

    python benchmarks/outcome_model.py                    # results/outcome_model_web.json
    python benchmarks/outcome_model.py --small            # a quick look; writes nothing
    python benchmarks/outcome_model.py --model smollm2-135m --device cuda --learning-rate 1e-4
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepwell.agents import Agent
from stepwell.config.run import RunConfig
from stepwell.core import EnvError, OutcomeSource, Split, StepwellError, Task, Trajectory
from stepwell.envs.base import Env
from stepwell.envs.web.actions import WebAction, print_action
from stepwell.envs.web.sites.tasks import find_template, plan_task
from stepwell.envs.web.sites.templates.template import make_content
from stepwell.monitors.calibration import draw_calibration
from stepwell.pool import Pool, open_pool
from stepwell.rewards.outcome_model.question import TextLimits
from stepwell.rollout import OracleSampler, Rollout, demonstrate
from stepwell.runs.build.components import Components
from stepwell.runs.outcome_model.rollouts import LabelledRollout, read_rollouts
from stepwell.runs.outcome_model.scoring import evaluate_judge
from stepwell.runs.outcome_model.training import OutcomeTraining, train_outcome_model
from stepwell.training.answer_model import AnswerTraining

RESULT = Path(__file__).parent / "results" / "outcome_model_web.json"
KINDS = {"oracle": 2, "noisy": 2, "early": 1, "sibling": 1, "random": 1}
"""Players, and how many episodes each plays beside the others."""
NOISE = 0.2


class ScriptedSampler(OracleSampler):
    """Answers requests as one kind of player would."""

    kind = "oracle"

    def _write_reply(self, env: Env, rng: np.random.Generator) -> str:
        return self._agent.write([self._choose_action(env, random.Random(int(rng.integers(2**62))))])

    def _choose_action(self, env: Any, rng: random.Random) -> str:
        num_done = len(env._done)
        if self.kind == "random" or (self.kind == "noisy" and rng.random() < NOISE):
            return str(env.random_action(rng))
        if self.kind == "sibling" and num_done == 0 and env._plan is None:
            env._plan = plan_task(draw_sibling(env.task, rng))
        try:
            actions = env.oracle()
        except (EnvError, StepwellError, StopIteration, RuntimeError):
            actions = []
        if not actions:  # the script does not know how to go on from here
            return str(env.random_action(rng))
        action = str(actions[0])
        if self.kind == "early" and num_done >= 1 and not action.startswith("exit") and rng.random() < 0.5:
            words = env.task.instruction.split()
            return print_action(WebAction("exit", argument=rng.choice(["done", "done", rng.choice(words)])))
        return action


def draw_sibling(task: Task, rng: random.Random) -> Any:
    """Another task of the same template; the same one where it has no parameters."""
    content: dict[str, Any] = dict(task.content)
    for _ in range(20):
        other = make_content(find_template(content), rng, content["size"], content["world"])
        if other["parameters"] != content["parameters"]:
            return other
    return content


def play_kinds(components: Components, split: Split, count: int, seed: int, pool: Pool) -> None:
    """Play `count` tasks per share with every kind of player, into a pool."""
    backend = components.language
    agent: Agent = backend.agent
    for number, (kind, share) in enumerate(KINDS.items()):
        tasks = components.tasks(split, count * share, seed + 100 * number)
        sampler = ScriptedSampler(
            components.envs,
            agent,
            lambda text: backend.tokenizer.encode(text, add_special_tokens=False),
            backend.renderer.end_ids[0],
        )
        sampler.kind = kind
        shown = demonstrate(Rollout(components.envs, backend.player, sampler), list(tasks), seed + number)
        shown = [replace(each, group="") for each in shown]
        pool.add(shown, tags=(kind,))
        print(f"{split} {kind}: {len(shown)} episodes, {np.mean([t.is_success for t in shown]):.2f} solved")


class JudgedBefore:
    """The answers of a judge that was asked once, for several tables."""

    source = OutcomeSource.OUTCOME_MODEL

    def __init__(
        self, name: str, answers: Sequence[float | None], rollouts: Sequence[LabelledRollout]
    ) -> None:
        self.name = name
        self._answers = {one.trajectory.id: p for one, p in zip(rollouts, answers, strict=True)}

    def judge(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        """What it answered."""
        return [self._answers[each.id] for each in trajectories]


def main() -> None:
    """Play, train, measure and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny-0.3m")
    parser.add_argument("--train", type=int, default=250, help="tasks per share of a kind")
    parser.add_argument("--held-out", type=int, default=80)
    parser.add_argument(
        "--num-train", type=int, default=1750, help="of the training episodes, drawn at random"
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-tokens", type=int, default=448)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--pools", type=Path, help="keep the episodes here, and use them if they are there")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if args.small:
        args.train, args.held_out, args.epochs, args.seeds = 20, 10, 2, [0]
    folder = args.pools or Path(tempfile.mkdtemp())
    play_pools(args, folder)
    runs: list[dict[str, Any]] = []
    for seed in args.seeds:
        runs.append(train_and_measure(args, folder, seed))
        if not args.small:
            write_result(args, runs)


def write_result(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """The runs so far, beside this file."""
    accuracy = [run["held_out"]["score"]["accuracy"] for run in runs]
    print(f"held-out accuracy {np.mean(accuracy):.3f} ({', '.join(f'{value:.3f}' for value in accuracy)})")
    result = {
        "machine": {"cpu": platform.processor() or platform.machine(), "torch": torch.__version__},
        "settings": {k: v for k, v in vars(args).items() if not isinstance(v, Path)},
        "mean_accuracy": float(np.mean(accuracy)),
        "runs": runs,
    }
    args.output.write_text(json.dumps(result, indent=1) + "\n")
    first = runs[0]["held_out"]
    args.output.with_suffix(".svg").write_text(draw_calibration(first["judge"], first["reliability"]))


def play_pools(args: argparse.Namespace, folder: Path) -> None:
    """Training and held-out episodes, each in a pool; what is there already is kept."""
    if (folder / "held_out.db").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = RunConfig.model_validate(
        {
            "env": {"name": "web"},
            "policy": {"model": "tiny-0.3m"},
            "agent": {"guide": False, "context": "observation"},
            "recipe": {"name": "webrl"},
        }
    )
    components = Components(config, folder / "run", "outcome-model")
    started = time.perf_counter()
    for name, split, count in (
        ("train", Split.TRAIN, args.train),
        ("held_out", Split.HELD_OUT, args.held_out),
    ):
        with open_pool(folder / f"{name}.partial.db") as pool:
            play_kinds(components, split, count, 7, pool)  # the same episodes whatever the models' seeds
        (folder / f"{name}.partial.db").rename(folder / f"{name}.db")
    components.close()
    print(f"played in {time.perf_counter() - started:.0f} s")


def train_and_measure(args: argparse.Namespace, folder: Path, seed: int) -> dict[str, Any]:
    """One outcome model, measured as a whole and by kind of player."""
    settings = OutcomeTraining(
        model=args.model,
        limits=TextLimits(args.max_tokens, args.max_tokens // 2),
        answers=AnswerTraining(args.epochs, 16, args.learning_rate, patience=3),
        seed=seed,
        device=args.device,
    )
    started = time.perf_counter()
    every = read_rollouts([str(folder / "train.db")])
    rollouts = random.Random(0).sample(every, min(args.num_train, len(every)))
    to = Path(tempfile.mkdtemp()) / "outcome-model"
    model = train_outcome_model(
        rollouts, to, settings, note=lambda text: print(f"seed {seed}: {text}", flush=True)
    )
    train_s = time.perf_counter() - started
    held_out = str(folder / "held_out.db")
    others = read_rollouts([held_out])
    judged = JudgedBefore(model.name, model.judge([one.trajectory for one in others]), others)
    report = evaluate_judge(judged, others)
    by_kind = {
        kind: asdict(evaluate_judge(judged, read_rollouts([held_out], tags=[kind])).score) for kind in KINDS
    }
    print(f"seed {seed}: {report.score}", flush=True)
    return {
        "seed": seed,
        "train_s": round(train_s, 1),
        "num_train": len(rollouts),
        "held_out": report.as_dict(),
        "by_player": by_kind,
        "training": model.figures,
    }


if __name__ == "__main__":
    main()
