"""Runs and episodes made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from stepwell.core import (
    Status,
    Step,
    Task,
    TokenAction,
    TokenState,
    Trajectory,
)
from stepwell.monitors import JsonlMonitor, LogEntry, RunInfo
from stepwell.pool import open_pool

TOKEN = "secret"


def make_episode(number: int, *, group: str = "", status: Status = Status.SUCCESS) -> Trajectory:
    prompt = np.array([1, 2, 3, number], np.int32)
    step = Step(
        TokenState(prompt),
        TokenAction(np.array([7, 8], np.int32), f"say {number}"),
        np.full(2, -0.5, np.float32),
    )
    step.assign_reward({"task": float(number)})
    step.info = {"parts": {"task": float(number), "grounding": 0.5, "world_modeling": 0.0}}
    task = Task("lake", {"n": number % 3}, instruction=f"walk {number}")
    return Trajectory(task, [step], status, group=group, id=f"traj-{number:03d}")


def write_run(folder: Path, name: str = "one", num_episodes: int = 120, seed: int = 0) -> Path:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        f'seed = {seed}\n[env]\nname = "lake"\n[recipe]\nname = "steppo"\n[train]\nnum_updates = 5\n'
    )
    monitor = JsonlMonitor()
    monitor.start(RunInfo(run, name=name, env="lake", recipe="steppo", seed=seed, num_updates=5))
    for update in range(5):
        values = {"success": 0.1 * update, "low": 0.0, "high": 1.0}
        monitor.record(LogEntry("eval", update, update, 10 * update, values))
        more = {"reward": 0.2 * update, "entropy": 1.0, "tokens": 100.0, "tokens_per_s": 50.0 + seed}
        monitor.record(LogEntry("update", update + 1, update + 0.5, 10 * update + 10, more))
    monitor.close()
    if num_episodes:
        (run / "pool").mkdir()
        with open_pool(run / "pool") as pool:
            status = (Status.SUCCESS, Status.FAILURE)
            pool.add(
                [make_episode(i, group=f"g{i // 4}", status=status[i % 2]) for i in range(num_episodes)],
                group_sizes=4,
            )
    return run


def read_page(client: TestClient, path: str, **query: Any) -> str:
    """The page at a path; anything but a page is an error."""
    reply = client.get(path, params=query or None)
    assert reply.status_code == 200, reply.text
    return reply.text
