"""A run folder in which every field that an agent, a page or a user can write holds markup and controls."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from stepwell.core import (
    Outcome,
    Status,
    Step,
    Task,
    TextAction,
    TextState,
    TokenAction,
    TokenState,
    Trajectory,
)
from stepwell.core.outcome import OutcomeSource
from stepwell.core.step import JSON
from stepwell.monitors import JsonlMonitor, LogEntry, RunInfo
from stepwell.pool import open_pool

EVIL = "<script>window.hit=1</script><img src=x onerror=window.hit=1>\"'{{7*7}}\x00\x1b[2J\u202egnp.\x07"
SHOTS = os.environ.get("STEPWELL_SCREENSHOTS")  # a folder: the pictures of docs/view.md are written there
TOKEN = "a-token-for-tests"
NAME = "a<b>&'\"run"


def write_hostile_run(folder: Path) -> Path:
    """Make the run; gives its folder."""
    run = folder / NAME
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        'seed = 1\n[env]\nname = "<b>env</b>"\n[recipe]\nname = "<i onclick=alert(1)>"\n'
    )
    monitor = JsonlMonitor()
    monitor.start(RunInfo(run, name=NAME, env="e", recipe="r", seed=0, num_updates=1))
    monitor.record(LogEntry("update", 1, 1.0, 10, {"reward": 0.5, f"reward/{EVIL}": 0.5, "success": 0.1}))
    monitor.note(f"worker died: {EVIL}")
    monitor.close()
    (run / "pool").mkdir()
    with open_pool(run / "pool") as pool:
        pool.add([make_token_episode(), make_text_episode()], group_sizes=1)
        pool.tag(["traj-evil"], "<u>tag</u>")
        pool.report("traj-evil", {EVIL: EVIL})
    return run


def make_token_episode() -> Trajectory:
    ids = np.arange(5, dtype=np.int32)
    step = Step(
        TokenState(ids),
        TokenAction(ids[:3], EVIL),
        np.full(3, -1.0, np.float32),
        info={EVIL: EVIL, "problem": EVIL},
    )
    step.assign_reward({EVIL: 1.0})
    task = Task("<b>env</b>", {EVIL: EVIL}, instruction=EVIL)
    made = Trajectory(task, [step], Status.AGENT_ERROR, error=EVIL, id="traj-evil", timings={"<s>": 1.0})
    made.outcome = Outcome(0.2, OutcomeSource.OUTCOME_MODEL, "<b>judge</b>")
    return made


def make_text_episode() -> Trajectory:
    messages: JSON = [{"role": EVIL, "content": EVIL}]
    step = Step(TextState(), TextAction(EVIL), np.zeros(0, np.float32), info={"messages": messages})
    step.assign_reward({"task": 0.0})
    return Trajectory(Task("e", {"n": 1}, instruction=EVIL), [step], Status.FAILURE, id="traj-text")
