"""`stepwell train` and `report`: a whole run from one line, and what an interrupt leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.config.loading import load_config

SMALL = [
    "frozenlake",
    "policy.model=tiny-0.3m",
    "warm_start.num_demos=8",
    "train.tasks_per_update=2",
    "eval.num_tasks=8",
    "sampling.max_tokens=8",
    "monitor.tensorboard=false",
]


@pytest.mark.slow
def test_a_run_ends_with_its_figures_and_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *SMALL, "train.num_updates=1", f"folder={tmp_path}", "name=first"]) == 0
    folder = tmp_path / "first"
    summary = json.loads((folder / "summary.json").read_text())
    before, after = summary["success_before"], summary["success_after"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"held-out success {before:.2f} -> {after:.2f}  report {folder / 'report.html'}"
    assert load_config(folder).train.num_updates == 1
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").is_file()
    assert main(["train", *SMALL, f"folder={tmp_path}", "name=first"]) == 2
    assert f"continue with --resume {folder}" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "stepwell",
        "train",
        *SMALL,
        "train.num_updates=100000",
        "checkpoint.every=2",
    ]
    started = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 240
        while not list(tmp_path.glob("runs/*/checkpoints/update-*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=240)
    finally:
        started.kill()
    (folder,) = tmp_path.glob("runs/*")
    assert started.returncode == 130, err
    go_on = f"interrupted. Continue with: stepwell train --resume {folder.relative_to(tmp_path)}"
    assert err.split("\n") == ["", go_on, ""]  # and nothing that a library prints
