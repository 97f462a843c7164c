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

from stepwell.runs.planner import forecast
from stepwell.runs.planner.case_pool import CasePool
from stepwell.runs.planner.forecast import Cluster, choose_best, forecast_run, model_case, recommend_settings

LIMIT_S = 60.0


def test_processes_forecast_what_one_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = PROFILE.model_copy(update={"controller_s": 0.0007})
    found = []
    for num_processes in (1, 3):
        monkeypatch.setattr(forecast, "_KNOWN", {})
        with CasePool(model_case, num_processes) as pool:
            rows = forecast_run(CONFIG, profile, Cluster((1, 2), cores=4.0), pool=pool)
            found.append((rows, *recommend_settings(choose_best(rows, 2), pool=pool)))
    assert found[0] == found[1]


def test_an_error_in_a_process_is_raised_here_and_results_come_in_order() -> None:
    with CasePool(divmod, 2) as pool:
        assert pool.run_all([(n, 3) for n in range(7)]) == [divmod(n, 3) for n in range(7)]
        with pytest.raises(ZeroDivisionError):
            pool.run_all([(1, 0), (1, 1)])


def list_children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def await_true(check: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def await_end(pids: list[int]) -> None:
    await_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "a process was left behind")


def test_processes_end_when_the_one_that_started_them_is_killed() -> None:
    program = (
        "import time\n"
        "from stepwell.runs.planner.case_pool import CasePool\n"
        "pool = CasePool(time.sleep, 3)\n"
        "pool.run_all([(0.01,)] * 4)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"ready\n"
        children = list_children(started.pid)
        started.kill()
    assert len(children) == 3
    await_true(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "a process was left behind"
    )


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_reaches_all_processes_and_one_line_is_said(tmp_path: Path) -> None:
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
    with started:
        await_true(
            lambda: len(list_children(started.pid)) > 0 or started.poll() is not None, "it never forked"
        )
        children = list_children(started.pid)
        os.killpg(started.pid, signal.SIGINT)
        assert started.stderr is not None
        said = started.stderr.read()
    assert said.strip() == "interrupted." and started.returncode == 130
    await_true(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "a process was left behind"
    )
