"""Sessions of a study: one at a time in its folder, and how they end and go on."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.processes import await_end, start_module
from tests.studies.study_files import SMALL, planned

from stepwell.config.study import load_study, plan_runs
from stepwell.core.child_process import ChildProcess
from stepwell.core.errors import ConfigError
from stepwell.monitors.jsonl import read_entries
from stepwell.studies.folder import adopt_folder, lock_folder
from stepwell.studies.run_status import read_status
from stepwell.studies.study import _choose_runs, plan_study, run_study


def test_a_changed_study_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    adopt_folder(folder, planned(SMALL, tmp_path), False, False)
    adopt_folder(folder, planned(SMALL, tmp_path), False, False)
    changed = planned(SMALL.replace("group_size = 2", "group_size = 3"), tmp_path)
    with pytest.raises(ConfigError) as refusal:
        adopt_folder(folder, changed, False, False)
    assert "train.group_size 2 -> 3 (4 runs such as lake-grpo-seed0)" in str(refusal.value)
    assert "tasks_per_update" not in str(refusal.value)
    with pytest.raises(ConfigError, match=r"no longer there \(4 runs such as lake-steppo-seed1\)"):
        adopt_folder(folder, planned(SMALL.replace("[0, 1]", "[0]"), tmp_path), False, False)
    adopt_folder(
        folder, planned(SMALL.replace("[0, 1]", "[0, 1, 2]"), tmp_path), False, False
    )  # more is no change


def test_restart_throws_the_runs_away_and_nothing_that_is_not_a_study(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "runs" / "precious").mkdir(parents=True)
    with pytest.raises(ConfigError, match="has runs in it but no study"):
        adopt_folder(folder, planned(SMALL, tmp_path), False, True)
    (folder / "plan.json").write_text('{"runs": {"lake-old-seed0": {}}}')
    adopt_folder(folder, planned(SMALL, tmp_path), False, True)
    assert not (folder / "runs").exists()
    assert len(json.loads((folder / "plan.json").read_text())["runs"]) == 8


def test_a_folder_has_one_session_at_a_time(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path, None),
        pytest.raises(ConfigError, match=rf"process {os.getpid()}\) is running"),
        lock_folder(tmp_path, None),
    ):
        pytest.fail("the second session got in")
    with lock_folder(tmp_path, None):
        pass


# --- processes --------------------------------------------------------------------------------

TINY = """
name = "tiny"
seeds = [0]
[settings]
policy.model = "tiny-0.3m"
env.options = { size = 3, max_turns = 2 }
agent.guide = false
sampling.max_tokens = 8
warm_start = { num_demos = 4, batch_size = 4 }
eval = { every = 0, num_tasks = 2 }
checkpoint.every = 2
train = { num_updates = 2, tasks_per_update = 2, group_size = 2, num_tasks = 16 }
[[variants]]
name = "steppo"
[[variants]]
name = "grpo"
settings = { recipe.name = "grpo" }
"""


def test_several_patterns_choose_the_runs_of_any_and_each_must_match_one(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY.replace("seeds = [0]", "seeds = [0, 1]"))
    runs = plan_runs(load_study(file), tmp_path, tmp_path / "runs")
    names = [run.name for run in _choose_runs(runs, ["grpo-seed0", "step*1"])]
    assert names == ["frozenlake-grpo-seed0", "frozenlake-steppo-seed1"]
    names = [run.name for run in _choose_runs(runs, ["seed1", "grpo"])]  # the order of the patterns
    assert names == ["frozenlake-steppo-seed1", "frozenlake-grpo-seed1", "frozenlake-grpo-seed0"]
    assert _choose_runs(runs, []) == runs
    with pytest.raises(ConfigError, match="--only: no run's name matches 'gpro'"):
        _choose_runs(runs, ["steppo", "gpro"])


def test_what_a_study_can_detect_counts_the_seeds_that_will_be_there(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(TINY.replace("seeds = [0]", "seeds = [0, 1, 2]"))

    def tell(*only: str) -> str:
        return plan_study(file, folder=tmp_path / "runs", only=only).describe_power()[0]

    assert "3 seeds" in tell() and "2 seeds" in tell("seed0", "seed1")
    assert "1 seed " in tell("seed0", "steppo")  # the variant with the fewest seeds decides


def test_only_the_chosen_runs_must_be_possible_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(
        TINY.replace('recipe.name = "grpo"', 'env = { name = "multihop_qa", options.dataset = "gone" }')
    )
    with pytest.raises(ConfigError, match="variant grpo on frozenlake"):
        run_study(file, folder=tmp_path / "all", limit_s=0.1)
    session = run_study(file, folder=tmp_path / "some", only=["steppo"], limit_s=0.1, workers=1)
    assert (session.ending, session.num_runs) == ("limit", 1)


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_the_others_come_to_their_end(tmp_path: Path) -> None:
    file, folder = tmp_path / "tiny.toml", tmp_path / "out"
    file.write_text(TINY.replace('recipe.name = "grpo"', 'policy.model = "no/where"'))
    output = io.StringIO()
    options: dict[str, Any] = {"folder": folder, "workers": 2, "console": Console(file=output, width=300)}
    early = run_study(file, limit_s=0.5, **options)
    assert (early.ending, early.num_done) == ("limit", 0)
    assert "frozenlake-steppo-seed0" not in early.failed  # it was cut short; the other one may have failed
    assert re.search(r"the time is up: [0-2] runs save and stop", output.getvalue())
    session = run_study(file, **options)
    assert (session.ending, session.num_done, session.num_runs) == ("failed", 1, 2)
    assert session.failed == ["frozenlake-grpo-seed0"]
    *_, told = [line for line in output.getvalue().splitlines() if "frozenlake-grpo-seed0  failed: " in line]
    assert "no/where" in told
    saved = json.loads((folder / "results.json").read_text())
    runs = {run["variant"]: run for run in saved["runs"]}
    assert runs["grpo"]["status"] == "failed" and runs["grpo"]["error"].startswith("ModelError")
    assert runs["steppo"]["status"] == "finished" and runs["steppo"]["updates"] == 2
    assert saved["machines"][0]["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
    run = folder / "runs" / "frozenlake-steppo-seed0"
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["best"]
    # the next session leaves what is finished alone; nothing else was asked for
    written = (run / "summary.json").stat().st_mtime_ns
    assert run_study(file, only=["steppo"], **options).ending == "complete"
    assert (run / "summary.json").stat().st_mtime_ns == written
    endings = [item["ending"] for item in json.loads((folder / "results.json").read_text())["sessions"]]
    assert endings == ["limit", "failed", "complete"]


def wait_until(is_so: Any, process: ChildProcess) -> None:
    until = time.monotonic() + 90
    while not is_so():
        assert not process.has_died() and time.monotonic() < until, "the study ended or hangs"
        time.sleep(0.05)


def find_worker(process: ChildProcess, run: Path) -> int:
    """The child of a study that writes the log of this run."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    names = {os.path.basename(os.readlink(f"/proc/{child}/fd/1")): int(child) for child in text.split()}
    return names[f"{run.name}.log"]


def is_saved_after_an_interrupt(run: Path) -> bool:
    """Whether a run was told to stop, and its last update is in a checkpoint."""
    entries = read_entries(run / "metrics.jsonl")
    last = f"update-{max(entry.update for entry in entries):06d}"
    return any(e.text.startswith("interrupted") for e in entries) and (run / "checkpoints" / last).is_dir()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_study_survives_kill_9_of_a_worker_kill_9_of_itself_and_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY.replace("num_updates = 2", "num_updates = 20"))
    command = ["stepwell", "study", "tiny.toml", "--folder", "out", "--workers", "2"]
    folder, errors = tmp_path / "out" / "runs", tmp_path / "errors.txt"
    killed, other = folder / "frozenlake-steppo-seed0", folder / "frozenlake-grpo-seed0"

    def sit() -> ChildProcess:
        return start_module(*command, log=errors)

    first = sit()
    try:
        wait_until(lambda: all(any((run / "checkpoints").glob("update-*")) for run in (killed, other)), first)
        os.kill(find_worker(first, killed), signal.SIGKILL)
        wait_until(lambda: read_status(killed) == "failed", first)
        assert "was killed by SIGKILL" in (killed / "error.txt").read_text()
    finally:
        first.send_signal(signal.SIGKILL)
        await_end(first)
    # the worker that is left notices, saves and stops; the next session waits for it
    second = sit()
    wait_until(lambda: not (killed / "error.txt").exists(), second)
    wait_until(lambda: is_saved_after_an_interrupt(other), second)
    second.send_signal(signal.SIGINT)
    code, output = await_end(second)
    assert code == 130, output
    assert errors.read_text().splitlines()[-1].endswith("the same command continues where it stopped.")
    third = sit()
    code, output = await_end(third)
    assert code == 0, output
    assert output.splitlines()[-1].startswith("2 of 2 runs done  table out/table.md")
    for run in (killed, other):
        updates = [entry.update for entry in read_entries(run / "metrics.jsonl") if entry.kind == "update"]
        assert updates == list(range(1, 21)) and read_status(run) == "finished"
    endings = [item["ending"] for item in json.loads((tmp_path / "out/results.json").read_text())["sessions"]]
    assert endings == ["killed", "interrupted", "complete"]
