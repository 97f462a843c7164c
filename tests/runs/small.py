"""Runs small enough for a test: three-by-three lakes, two turns, a model that speaks in the required form."""

from __future__ import annotations

import os
from contextlib import closing
from functools import cache
from pathlib import Path

import torch

from stepwell.config.loading import load_config
from stepwell.config.run import RunConfig
from stepwell.core import Trajectory
from stepwell.monitors import LogEntry
from stepwell.monitors.jsonl import read_entries
from stepwell.policies.model_cache import get_cached_model
from stepwell.pool import Filter, open_pool
from stepwell.runs.build.components import Components
from stepwell.training import imitate

WORLD = (
    "env.options={size=3, max_turns=2}",
    "sampling.max_tokens=10",
    "rewards.scale=0.1",
    "engine.max_batch_size=16",
    "num_threads=1",
)
SMALL = (
    *WORLD,
    "train.num_updates=2",
    "train.tasks_per_update=4",
    "train.group_size=2",
    "train.num_tasks=8",
    "train.optimizer.learning_rate=1e-3",
    "eval.num_tasks=6",
    "eval.every=0",
    "checkpoint.every=0",
    "monitor.console=false",
    "monitor.tensorboard=false",
    "monitor.report=false",
)


@cache
def warmed_model() -> str:
    """A model without critic that answers in the required form and now and then succeeds.

    It is made once for all processes of a test run.
    """
    return str(get_cached_model("warmed", _make_warmed_model, Path(os.environ["STEPWELL_TESTS_SHARED"])))


def _make_warmed_model(folder: Path) -> None:
    start = ("num_demos=64", "batch_size=16", "epochs=8", "optimizer.learning_rate=5e-3")
    settings = [*WORLD, *(f"warm_start.{item}" for item in start)]
    config = load_config(None, [*settings, "policy.model=tiny-0.3m", "recipe.name=grpo"])
    components = Components(config)
    for _ in imitate(
        components.policy, components.play_demonstrations(64, 0.0, 0), config.warm_start, seed=0
    ):
        pass
    components.policy.save_pretrained(folder)


def small_config(*settings: str, folder: Path | None = None, name: str = "run") -> RunConfig:
    """A run of a few updates; later settings win."""
    where = [] if folder is None else [f"folder={folder}", f"name={name}"]
    return load_config(None, [*SMALL, f"policy.model={warmed_model()}", *where, *settings])


def small_components(*settings: str) -> Components:
    """The parts of such a run, seeded as a run seeds them."""
    torch.manual_seed(0)
    return Components(small_config(*settings))


def timeless(folder: Path) -> list[LogEntry]:
    """What a run recorded, without what depends on the clock; notes left out."""
    entries = []
    for entry in read_entries(folder / "metrics.jsonl"):
        values = {k: v for k, v in entry.values.items() if not k.startswith("time/") and k != "tokens_per_s"}
        if entry.kind != "event":
            entries.append(LogEntry(entry.kind, entry.update, 0.0, entry.env_steps, values))
    return entries


def played(folder: Path, update: int) -> list[Trajectory]:
    """The trajectories that a run played for an update, failures included."""
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        stored = [pool.get(entry.id) for entry in pool.find(Filter(channel="train"))]
    return [item.trajectory for item in stored if item.source.get("update") == update]


def notes(folder: Path) -> list[str]:
    """What a run said in words."""
    return [entry.text for entry in read_entries(folder / "metrics.jsonl") if entry.kind == "event"]
