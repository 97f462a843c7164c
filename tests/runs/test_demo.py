"""The demo: one line at the end, with true figures and its baselines beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepwell.config.loading import load_config
from stepwell.monitors.summary import read_summary
from stepwell.runs.demo import demo
from stepwell.training import list_checkpoints

SMALL = (
    "train.num_updates=2",
    "train.num_tasks=64",
    "train.tasks_per_update=2",
    "warm_start.num_demos=16",
    "warm_start.epochs=1",
    "eval.num_tasks=8",
    "env.options.max_turns=3",
    "monitor.console=false",
)


@pytest.mark.slow
def test_the_last_line_tells_what_the_summary_and_the_report_hold(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "NUM_BLIND_TASKS", 100)
    run = demo.run_demo(1, tmp_path, (*SMALL, "checkpoint.every_minutes=0.0001"))
    assert list_checkpoints(run / "checkpoints")[0].name == "update-000000"
    out, err = capfd.readouterr()
    assert err == ""  # nothing that a library prints, from Python or below, reaches the console
    told = out.strip().splitlines()
    assert told[0] == "training (the time left is shown), then a comparison with simpler ways to play"
    line = told[-1]
    found = re.fullmatch(r"held-out success (\d\.\d\d) -> (\d\.\d\d)  report (.+report\.html)", line)
    summary = read_summary(run)
    assert found is not None and summary is not None
    assert (summary.success_before, summary.success_after) == (
        pytest.approx(float(found[1]), abs=0.006),
        pytest.approx(float(found[2]), abs=0.006),
    )
    page = Path(found[3]).read_text()
    names = [score.name for score in summary.baselines]
    assert names == [
        "blind plan",
        "random play",
        "warm start, greedy decoding",
        "trained, greedy decoding",
    ]
    assert all(name in page for name in names)
    assert summary.seed == 1 and summary.recipe == "steppo" and summary.decoding["temperature"] == 1.0


def test_the_demo_makes_the_same_updates_however_slow_the_machine_is() -> None:
    config = load_config("demo")
    assert config.train.max_seconds is None and config.train.max_env_steps is None


@pytest.mark.slow
def test_neither_a_blind_plan_nor_luck_solves_the_demos_tasks() -> None:
    config = load_config("demo")
    assert config.eval.num_tasks >= 256 and config.env.name == "courier"
    blind, luck = demo._score_blind_play(config)
    assert blind.success <= 0.15 and luck.success <= 0.03
    assert re.fullmatch(r"always (\w+, ){5}\w+ and 24 more", blind.note)
