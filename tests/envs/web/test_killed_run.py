"""A whole training run whose Chromium is killed while an update is played."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from tests.envs.web.conftest import needs_chromium
from tests.envs.web.killing_env import MARK, list_marked
from tests.processes import await_end, start_module
from tests.runs.small import played

from stepwell.monitors.jsonl import read_entries

SETTINGS = (
    "env.name=tests.envs.web.killing_env:KillingWeb",
    "env.options.miniwob.pages=['click-test']",  # one button: its click is learnt in seconds
    "engine.max_batch_size=4",
    "engine.num_slots=4",
    "warm_start.num_demos=4",
    "warm_start.batch_size=4",
    "warm_start.epochs=60",
    "warm_start.max_updates=60",
    "train.num_updates=2",
    "train.tasks_per_update=8",
    "train.num_tasks=16",
    "train.minibatches=1",
    "eval.every=0",
    "eval.num_tasks=2",
    "monitor.console=false",
    "monitor.tensorboard=false",
    "monitor.report=false",
)


@needs_chromium
@pytest.mark.slow
def test_a_run_whose_browser_is_killed_in_mid_update_learns_from_all_but_the_lost_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, ledger = uuid.uuid4().hex, tmp_path / "ledger.jsonl"
    monkeypatch.setenv(MARK, mark)
    where = (f"folder={tmp_path}", "name=run", f"env.options.ledger={ledger}", "env.options.kill_at=6")
    process = start_module("stepwell", "train", "miniwob-tiny", *SETTINGS, *where, log=tmp_path / "log")
    code, _ = await_end(process)
    assert code == 0, (tmp_path / "log").read_text()[-3000:]

    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    count = Counter(event for event, _, _ in events)
    ((num_killed, commands),) = [value for event, _, value in events if event == "killed"]
    assert num_killed == 1 and any("--stepwell-browser=" in command for command in commands)
    assert 1 <= count["lost"] <= 4  # at most those that were open
    assert all("browser" in value for event, _, value in events if event == "lost")

    updates = [
        entry.values for entry in read_entries(tmp_path / "run" / "metrics.jsonl") if entry.kind == "update"
    ]
    # told, in the update it hit: the first, unless more than two of its eight replies were no actions
    assert sorted(values["infra_errors"] for values in updates) == [0, count["lost"]]
    kept = [played(tmp_path / "run", number) for number in (1, 2)]
    assert [len(batch) for batch in kept] == [8, 8]  # lost ones were played again: all others once
    trajectories = [trajectory for batch in kept for trajectory in batch]
    assert len({trajectory.task.id for trajectory in trajectories}) == 16
    assert all(trajectory.is_trainable for trajectory in trajectories)
    rewards = {task: value for event, task, value in events if event == "played"}
    for trajectory in trajectories:  # each holds what its page paid; None: a reply that was no action
        assert rewards.get(trajectory.task.id, 0.0) == trajectory.steps[-1].reward_parts.get("outcome")

    until = time.monotonic() + 60
    while left := list_marked(mark):
        assert time.monotonic() < until, f"left behind: {left}"
        time.sleep(0.1)
