"""Studies small enough for a test, and run folders as the loop leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.config.study import PlannedRun, StudyConfig, load_study, plan_runs
from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.jsonl import JsonlMonitor
from stepwell.monitors.summary import SuccessScore, Summary, write_summary

SMALL = """
name = "small"
base = "frozenlake"
seeds = [0, 1]
[settings]
policy.model = "tiny-0.3m"
sampling.max_tokens = 8
warm_start.num_demos = 8
eval = { every = 2, num_tasks = 8 }
train = { num_updates = 4, tasks_per_update = 4, group_size = 1 }
[[environments]]
name = "lake"
settings.env.options.size = 4
[[environments]]
name = "big-lake"
settings.env.options.size = 5
[[variants]]
name = "steppo"
[[variants]]
name = "grpo"
settings = { recipe.name = "grpo", train.group_size = 2 }
[quick]
seeds = [0]
environments = ["lake"]
variants = ["grpo"]
settings.train.num_updates = 1
"""


def study_of(text: str, tmp_path: Path) -> StudyConfig:
    file = tmp_path / "study.toml"
    file.write_text(text)
    return load_study(file)


def planned(text: str, tmp_path: Path, **options: Any) -> list[PlannedRun]:
    return plan_runs(study_of(text, tmp_path), tmp_path, tmp_path / "runs", **options)


def write_run(run: PlannedRun, heights: list[float], *, status: Any = "finished", step: int = 50) -> None:
    """A run folder as the loop leaves it: evaluations every `step` environment steps."""
    folder = Path(run.config.folder) / run.name
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    monitor = JsonlMonitor()
    monitor.start(RunInfo(folder, run.name, "frozenlake", run.variant, run.seed, 10))
    for index, height in enumerate(heights):
        monitor.record(LogEntry("eval", index, 2.0 * index, step * index, {"success": height}))
    monitor.close()
    last = len(heights) - 1
    summary = Summary(
        heights[0], heights[-1], step * last, 2.0 * last, run.seed, run.variant, "frozenlake", status
    )
    summary.after = SuccessScore(heights[-1], heights[-1] - 0.1, heights[-1] + 0.1, 64)
    summary.more = {"num_updates": last, "warm_start_s": 1.0}
    summary.machine = {"processor": "abacus", "torch": "2"}
    write_summary(folder, summary)


THREE = """
name = "three"
title = "Three <of> them"
seeds = [0, 1, 2]
env_steps = 100
[settings]
train = { tasks_per_update = 4, group_size = 1 }
[[environments]]
name = "lake"
[[variants]]
name = "base"
note = "as it is & was"
[[variants]]
name = "good"
[[variants]]
name = "better"
[[variants]]
name = "broken"
"""
