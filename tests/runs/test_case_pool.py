"""Forecasts made by several processes (runs/planner/case_pool.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runs.test_planner import CONFIG, PROFILE

from stepwell.core.errors import InfraError
from stepwell.runs.planner import forecast
from stepwell.runs.planner.case_pool import CasePool
from stepwell.runs.planner.forecast import Cluster, choose_best, forecast_run, recommend_settings

LIMIT_S = 60.0


def await_true(check: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def test_processes_forecast_what_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "MIN_CALLS", 0)
    profile = PROFILE.model_copy(update={"controller_s": 0.0007})
    found = []
    for num_processes in (1, 3):
        monkeypatch.setattr(forecast, "_KNOWN", {})
        with CasePool(num_processes) as pool:
            rows = forecast_run(CONFIG, profile, Cluster((1, 2), cores=4.0), pool=pool)
            found.append((rows, *recommend_settings(choose_best(rows, 2), pool=pool)))
            assert len(pool.pids) == (3 if num_processes > 1 else 0)
    assert found[0] == found[1]


def test_little_work_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "_KNOWN", {})
    with CasePool(3) as pool:
        forecast_run(CONFIG, PROFILE, Cluster((1,), cores=4.0), pool=pool)
        assert not pool.pids


def test_a_process_that_fails_is_an_error_with_the_end_of_its_log() -> None:
    with CasePool(2) as pool, pytest.raises(InfraError, match="models cases ended with exit code 1"):
        pool.run_all([("no case", "no hardware")] * 2)


@pytest.mark.slow
def test_ctrl_c_ends_all_processes_and_one_line_is_said(tmp_path: Path) -> None:
    PROFILE.model_copy(update={"turns": (40,)}).write_file(tmp_path / "p.toml")
    words = ["plan", "frozenlake", "--profile", "p.toml", "--devices", "64", "--cores", "8"]
    started = subprocess.Popen(
        [sys.executable, "-m", "stepwell", *words],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def list_children() -> list[int]:
        file = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        return [int(pid) for pid in file.read_text().split()]

    with started:
        await_true(lambda: bool(list_children()), "it started no process")
        children = list_children()
        os.killpg(started.pid, signal.SIGINT)
        assert started.stderr is not None
        said = started.stderr.read()
    assert said.strip() == "interrupted." and started.returncode == 130
    await_true(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "a process was left behind"
    )
