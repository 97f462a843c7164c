"""A run folder in which every field that an agent, a page or a user can write holds markup and controls."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
from stepwell.monitors.replays import Replay, ReplayFrame, encode_png, save_replays
from stepwell.monitors.timeline import write_timeline
from stepwell.pool import open_pool

EVIL = (
    "<script>window.hit=1</script><img src=x onerror=window.hit=1>\"'{{7*7}}\x00\x1b[2J\u202egnp.\x07"
    "\u2066\U000e0041\ud800"
)
CONTROLS = set("\x00\x1b\x07\u202e\u2066\U000e0041\ud800")
STORED = EVIL.replace("\ud800", "")  # no record holds half a character; JSON may
SHOTS = os.environ.get("STEPWELL_SCREENSHOTS")  # a folder: the pictures of docs/view.md are written there
TOKEN = "a-token-for-tests"
NAME = "a<b>&'\"run"
GROUP = "<b>group</b>"
EPISODES = ("/trajectory?id=traj-evil", "/trajectory?id=traj-text", f"/group?name={quote(GROUP)}")
WRITTEN = ("", "/trajectories", *EPISODES, "/pipeline", "/curriculum", "/tree")  # its pages


def write_hostile_run(folder: Path) -> Path:
    """Make the run; gives its folder."""
    run = folder / NAME
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        'seed = 1\n[env]\nname = "<b>env</b>"\n[recipe]\nname = "<i onclick=alert(1)>"\n'
    )
    monitor = JsonlMonitor()
    monitor.start(RunInfo(run, name=NAME, env="e", recipe="r", seed=0, num_updates=1))
    for update in range(1, 4):  # enough for a chart with a legend
        values = {"reward": 0.5 * update, f"reward/{EVIL}": 0.2 * update, "reward/task": 0.3 * update}
        monitor.record(LogEntry("update", update, float(update), 10 * update, {**values, EVIL: 0.1 * update}))
    monitor.note(f"worker died: {EVIL}")
    monitor.close()
    (run / "pool").mkdir()
    with open_pool(run / "pool") as pool:
        pool.add([make_token_episode("traj-evil"), make_token_episode("traj-twin")], group_sizes=2)
        pool.add([make_text_episode()], group_sizes=1)
        pool.tag(["traj-evil"], "<u>tag</u>")
        pool.report("traj-evil", {STORED: STORED})
    write_timeline(run, {"seconds": 1.0, "rows": [{"group": EVIL, "worker": EVIL, "spans": [(0.0, 0.5)]}]})
    boards = [encode_png(np.full((8, 8, 3), shade, np.uint8)) for shade in (0, 255)]
    frames = [ReplayFrame(EVIL, EVIL, [EVIL], 0.5, {EVIL: 0.5}, board, problem=EVIL) for board in boards]
    save_replays(run / "replays.json", [Replay(EVIL, EVIL, EVIL, 0.5, frames, EVIL, EVIL, judged=EVIL)])
    (run / "phases").mkdir()
    for number in (1, 2):
        (run / "phases" / f"phase-{number:04d}.json").write_text(json.dumps(make_phase(number)))
    return run


def make_phase(number: int) -> dict[str, Any]:
    """A phase whose tasks a model has written."""
    figures = {EVIL: {"success": 0.5, "episodes": 2}}
    task = {"title": EVIL, "relation": EVIL, "value": 0.5}
    parents = [f"task-{number - 1}"]
    return {
        **{"phase": number, "updates": [1, 2], "num_episodes": 4, "success": 0.5, "made": 1, "buffer": 0},
        **{"families": figures, "required_turns": figures, "requirements": figures},
        **{"kept": {EVIL: 1}, "dropped": {EVIL: 1}, "errors": {EVIL: 1}},
        "perplexities": {"edges": [1.0, 2.0], "counts": [1, 0]},
        "dropped_tasks": [{**task, "reason": EVIL}],
        "tasks": [{**task, "id": f"task-{number}", "parents": parents, "solved": 0, "played": 1}],
    }


def make_token_episode(id: str) -> Trajectory:
    ids = np.arange(5, dtype=np.int32)
    step = Step(
        TokenState(ids),
        TokenAction(ids[:3], STORED),
        np.full(3, -1.0, np.float32),
        info={STORED: STORED, "problem": STORED},
    )
    step.assign_reward({STORED: 1.0})
    task = Task("<b>env</b>", {STORED: STORED}, instruction=STORED)
    end = {"error": STORED, "group": GROUP, "timings": {"<s>": 1.0}}
    made = Trajectory(task, [step], Status.AGENT_ERROR, id=id, **end)
    made.outcome = Outcome(0.2, OutcomeSource.OUTCOME_MODEL, "<b>judge</b>")
    return made


def make_text_episode() -> Trajectory:
    messages: JSON = [{"role": STORED, "content": STORED}]
    step = Step(TextState(), TextAction(STORED), np.zeros(0, np.float32), info={"messages": messages})
    step.assign_reward({"task": 0.0})
    return Trajectory(Task("e", {"n": 1}, instruction=STORED), [step], Status.FAILURE, id="traj-text")
