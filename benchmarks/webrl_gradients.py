"""How much of a batch's gradient points where the policy gradient points: WebRL's critic beside siblings.

    batches of 128 episodes, each task once   ─► WebRL's loss: critic as it starts, critic taught first
    batches of 16 tasks x 8 episodes          ─► RLOO, and WebRL's loss with RLOO's advantages
                                                  └─► cosine with the mean gradient of all other RLOO batches

A policy that was warmed and no more (the folder of a shared warm start: runs/study-NAME/warm/*) plays, and no
weight of it moves. `signal` is the share of a batch's squared gradient that is common to all batches; with a
signal of s, about 1/s batches are needed until the sum of their gradients has more signal than noise.

    python benchmarks/webrl_gradients.py frozenlake runs/study-webrl_baselines/warm/HASH --to FILE.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepwell.config.loading import load_config
from stepwell.core import Split, Trajectory
from stepwell.core.disk import atomic_write
from stepwell.rollout import Job
from stepwell.runs.build.components import Components
from stepwell.runs.machine import describe_machine

COMMON = (
    "policy.critic=own",
    "rewards.scale=1.0",
    'recipe.reward_parts=["outcome"]',
    "recipe.kl_coef=0.0",
    "train.minibatches=1",
    "train.optimizer.kind=adamw",
    "train.optimizer.learning_rate=1e-12",
    "train.optimizer.grad_clip=1e9",
    "num_threads=1",
)
WEBRL = ("recipe.name=webrl", "recipe.credit.gamma=1.0")
ALONE = {
    "webrl": WEBRL,
    "webrl, critic taught first, 2 passes": (*WEBRL, "train.critic_epochs=2"),
    "webrl, critic taught first, 8 passes": (*WEBRL, "train.critic_epochs=8"),
    "filtered BC": ("recipe.name=filtered-bc",),
    "awr": ("recipe.name=awr",),
}
SIBLINGS = {
    "rloo": ("recipe.name=rloo",),
    "webrl's loss, rloo's advantages": ("recipe.name=webrl", "recipe.credit.function=rloo"),
}


class Method:
    """One way to turn episodes into a gradient; its policy never moves."""

    def __init__(self, env: str, model: Path, settings: tuple[str, ...], critic_rate: float) -> None:
        words = [*COMMON, f"policy.model={model}", f"train.critic_learning_rate={critic_rate}", *settings]
        self.components = Components(load_config(env, words))
        self.components.trainer.freeze_reference()
        self.start = {name: p.detach().clone() for name, p in self.components.policy.named_parameters()}

    def compute_gradient(self, trajectories: list[Trajectory]) -> tuple[Tensor, dict[str, float]]:
        """The gradient of the actor, flat, and the figures of the update; weights are then as before."""
        figures = self.components.trainer.update(trajectories)
        parts = []
        with torch.no_grad():
            for name, parameter in self.components.policy.named_parameters():
                if (
                    not name.startswith(("critic", "value_head", "instruction"))
                    and parameter.grad is not None
                ):
                    parts.append(parameter.grad.detach().flatten().clone())
                parameter.copy_(self.start[name])
        self.components.trainer.optimizer.zero_grad()
        return torch.cat(parts), figures


def play(components: Components, num_tasks: int, group_size: int, seed: int) -> list[Trajectory]:
    """Episodes of training tasks drawn by the seed."""
    tasks = components.tasks(Split.TRAIN, num_tasks, seed)
    jobs = [Job(t, t.id, 1000 * seed + 10 * i + k) for i, t in enumerate(tasks) for k in range(group_size)]
    played: list[Trajectory] = components.runner.rollout.run(
        jobs, components.sampling_params(1.0)
    ).trajectories
    return played


def describe(
    gradients: list[Tensor], others: list[Tensor], is_of_others: bool
) -> tuple[dict[str, float], list[float]]:
    """Signal, and the cosines with the mean of the batches that are not the gradient's own."""
    stacked = torch.stack(gradients).double()
    products = stacked @ stacked.T
    count = len(gradients)
    common = float((products.sum() - products.diagonal().sum()) / (count * (count - 1)))
    whole = float(products.diagonal().mean())
    truth = torch.stack(others).double()
    cosines = []
    for number, gradient in enumerate(stacked):
        rest = [i for i in range(len(others)) if not (is_of_others and i == number)]
        cosines.append(float(torch.cosine_similarity(gradient, truth[rest].mean(0), dim=0)))
    return {"signal": round(common / whole, 4)} | _average("cosine", cosines), cosines


def _average(name: str, values: list[float]) -> dict[str, float]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
    return {name: round(float(np.mean(values)), 4), f"{name}_error": round(error, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("env", help="a preset")
    parser.add_argument("model", type=Path, help="folder of a warm start, with its critic")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--critic-rate", type=float, default=4e-3)
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    methods = {
        name: Method(args.env, args.model, words, args.critic_rate)
        for name, words in (ALONE | SIBLINGS).items()
    }
    player = methods["webrl"].components
    gradients: dict[str, list[Tensor]] = {name: [] for name in methods}
    figures: dict[str, list[float]] = {"success": [], "explained_variance": []}
    start = time.perf_counter()
    for number in range(args.batches):
        for group, size in ((ALONE, 1), (SIBLINGS, 8)):
            episodes = play(player, 128 // size, size, 1 + 2 * number + (size > 1))
            figures["success"].append(float(np.mean([each.is_success for each in episodes])))
            for name in group:
                gradient, told = methods[name].compute_gradient(episodes)
                gradients[name].append(gradient)
                if name == "webrl":
                    figures["explained_variance"].append(told["explained_variance"])
        print(f"{number + 1} of {args.batches}, {time.perf_counter() - start:.0f} s", flush=True)
        if number:
            write(args, methods, gradients, figures)


def write(
    args: argparse.Namespace,
    methods: dict[str, Method],
    gradients: dict[str, list[Tensor]],
    figures: dict[str, list[float]],
) -> None:
    """The figures so far; methods on the same episodes are compared with WebRL batch by batch."""
    found = {name: describe(gradients[name], gradients["rloo"], name in SIBLINGS) for name in methods}
    for name in ALONE:
        pairs = zip(found[name][1], found["webrl"][1], strict=True)
        found[name][0].update(_average("cosine_above_webrl", [ours - theirs for ours, theirs in pairs]))
    content: dict[str, Any] = {
        "how": __doc__.split("\n", maxsplit=1)[0],
        "env": args.env,
        "batches": len(gradients["rloo"]),
        "machine": describe_machine(),
        "success": round(float(np.mean(figures["success"])), 4),
        "critic_explains": round(float(np.mean(figures["explained_variance"])), 4),
        "methods": {name: measured for name, (measured, _) in found.items()},
    }
    atomic_write(args.to, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
