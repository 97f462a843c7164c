"""`stepwell train` and `report`: a whole run from one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.cli.main import main
from stepwell.config.loading import load_config

SMALL = [
    "frozenlake",
    "policy.model=tiny-0.3m",
    "warm_start.num_demos=8",
    "train.num_tasks=64",
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
