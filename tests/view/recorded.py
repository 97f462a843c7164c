"""Small recorded runs of every kind for tests of the view: real runs, seconds each."""

from __future__ import annotations

from pathlib import Path

from tests.runs.small import small_config
from tests.runs.test_async_runs import GROUPS
from tests.runs.test_robots import config as robot_config
from tests.runs.test_seeing import config as seeing_config

from stepwell.config.run import RunConfig
from stepwell.runs.run import train

TEXT = ("recipe.name=steppo", "policy.critic=shared", "train.update_epochs=2", "eval.every=1")


def build_config(kind: str, folder: Path, *settings: str, name: str = "") -> RunConfig:
    """The settings of a small run of a kind: text, vision, robot, web or streaming."""
    name = name or kind
    if kind == "vision":
        return seeing_config(
            "warm_start.epochs=2", "train.num_updates=1", *settings, folder=folder, name=name
        )
    if kind == "robot":
        quick = (
            "warm_start.num_demos=8",
            "train.num_updates=1",
            "eval.num_tasks=2",
            "train.tasks_per_update=2",
        )
        quick = (*quick, 'env.options={observation="camera"}')
        return robot_config(*quick, "recipe.name=steppo", *settings, folder=folder, name=name)
    if kind == "streaming":
        return small_config(*GROUPS, "workers.mode=stream", *settings, folder=folder, name=name)
    if kind == "web":
        settings = (*WEB, *settings)
    return small_config(*TEXT, *settings, folder=folder, name=name)


WEB = (
    "env.name=web",
    "env.options={size='tiny', templates=['shop.price'], page_form='short', max_turns=2}",
    "agent={strategy='no_think', guide=false, context='observation', max_history_chars=0}",
    "train.num_updates=1",
    "train.tasks_per_update=1",
    "eval.num_tasks=1",
    "engine.max_length=800",
)


def record_run(kind: str, folder: Path, *settings: str, name: str = "") -> Path:
    """Train it; gives its folder."""
    return train(build_config(kind, folder, *settings, name=name))
