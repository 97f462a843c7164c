"""A user's own agent with workers: whole runs in every mode, through a real gateway and real processes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.runs.small import small_config, timeless

from stepwell.core import Trajectory
from stepwell.monitors import LogEntry
from stepwell.pool import Filter, TrajectorySummary, open_pool
from stepwell.runs.run import train

AGENTS = Path(__file__).parent / "plain_agents.py"
OWN = (
    "recipe.name=rloo",
    "own_agent.num_processes=2",
    "own_agent.concurrency=6",
    "workers.processes=false",
    "workers.generators.max_wait_ms=1",
    "train.num_updates=3",
    "eval.num_tasks=2",
    "sampling.max_tokens=4",
)


def run(folder: Path, function: str, mode: str, *settings: str) -> Path:
    own = (f"own_agent.function={AGENTS}:{function}", f"workers.mode={mode}")
    return train(small_config(*OWN, *own, *settings, folder=folder))


def updates(folder: Path) -> list[LogEntry]:
    return [entry for entry in timeless(folder) if entry.kind == "update"]


def stored(folder: Path, channel: str = "train") -> list[TrajectorySummary]:
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        return list(pool.find(Filter(channel=channel)))


def load(folder: Path) -> list[Trajectory]:
    with closing(open_pool(folder / "pool" / "pool.db")) as pool:
        return [pool.get(entry.id).trajectory for entry in pool.find(Filter(channel="train"))]


@pytest.mark.parametrize("mode", ["sync", "rollout_async", "train_async", "stream"])
def test_every_mode_trains_an_own_agent_on_whole_groups_and_each_episode_once(
    mode: str, tmp_path: Path
) -> None:
    folder = run(tmp_path, "calls_twice", mode)
    found = updates(folder)
    assert [entry.update for entry in found] == [1, 2, 3]
    played = stored(folder)
    assert len(played) == 3 * 8 and {entry.state for entry in played} == {"consumed"}
    assert all(entry.group_size == 2 and entry.is_served and entry.num_steps == 2 for entry in played)
    behind = [entry.values["staleness/max"] for entry in found]
    assert max(behind) <= {"sync": 0, "rollout_async": 0, "train_async": 1, "stream": 2}[mode]
    assert all(entry.values["generators/batch"] > 0 for entry in found)
    assert len(stored(folder, "eval")) == 2 * 2
