"""Roll-outs of a fallible expert in a pool, for tests of outcome models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from stepwell.config.run import RunConfig
from stepwell.core import Split, Trajectory
from stepwell.pool import open_pool
from stepwell.runs.build.components import Components


def play_expert(
    env: str, count: int, noise: float, split: Split, folder: Path, **options: Any
) -> list[Trajectory]:
    """Episodes of the oracle with random actions among its own."""
    config = RunConfig.model_validate(
        {
            "env": {"name": env, "options": options},
            "policy": {"model": "tiny-0.3m"},
            "agent": {"guide": False, "context": "observation"},
        }
    )
    components = Components(config, folder, "rollouts")
    try:
        tasks = components.tasks(split, count, 0)
        shown = components.backend.demonstrate(tasks, noise, 3)
    finally:
        components.close()
    return [replace(each, group="", id=f"{split}-{number}") for number, each in enumerate(shown)]


def fill_pool(path: Path, trajectories: list[Trajectory]) -> Path:
    """A new pool with these trajectories."""
    with open_pool(path) as pool:
        pool.add(trajectories)
    return path
