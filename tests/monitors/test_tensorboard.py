"""TensorBoard's own reader gives back the recorded figures."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepwell.core.errors import ConfigError
from stepwell.monitors.base import LogEntry, RunInfo
from stepwell.monitors.tensorboard import TensorboardMonitor
from stepwell.monitors.wandb import WandbMonitor


def run(folder: Path, entries: list[LogEntry], resumed_from: int | None = None) -> None:
    monitor = TensorboardMonitor()
    config = {"seed": 7, "train": {"num_updates": 5}}
    monitor.start(RunInfo(folder, "r", "frozenlake", "steppo", 7, 5, config, resumed_from))
    for entry in entries:
        monitor.record(entry)
    monitor.note("the <end>")
    monitor.close()


def update(k: int, reward: float) -> LogEntry:
    return LogEntry("update", k, k, 10 * k, {"reward": reward, "reward/format": reward / 4})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_figures_come_back_under_the_tags_of_their_kind(tmp_path: Path) -> None:
    evaluation = LogEntry("eval", 2, 2.0, 20, {"success": 0.75})
    run(
        tmp_path,
        [LogEntry("warm_start", 0, 0.5, 0, {"loss": 1.5}), update(1, 0.5), update(2, 1.0), evaluation],
    )
    assert scalars(tmp_path) == {
        "warm_start/loss": [(0, 1.5)],
        "warm_start/env_steps": [(0, 0.0)],
        "train/reward": [(1, 0.5), (2, 1.0)],
        "train/reward/format": [(1, 0.125), (2, 0.25)],
        "train/env_steps": [(1, 10.0), (2, 20.0)],
        "eval/success": [(2, 0.75)],
        "eval/env_steps": [(2, 20.0)],
    }


def test_notes_and_the_configuration_are_text(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path, [update(3, 0.5), LogEntry("event", 3, 3.0, 30, text="stopped early")])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    texts = {
        tag: [event.tensor_proto.string_val[0] for event in events.Tensors(tag)]
        for tag in ("config", "events")
    }
    assert texts["events"] == [b"stopped early", b"the <end>"]
    assert b'"num_updates": 5' in texts["config"][0]


def test_a_resumed_run_shows_no_update_twice(tmp_path: Path) -> None:
    run(tmp_path, [update(k, k) for k in range(1, 5)])
    run(tmp_path, [update(k, 10 * k) for k in range(3, 6)], resumed_from=2)
    assert scalars(tmp_path)["train/reward"] == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]


def test_a_value_that_is_not_a_number_stays_one(tmp_path: Path) -> None:
    run(tmp_path, [update(1, math.nan), update(2, math.inf)])
    (_, first), (_, second) = scalars(tmp_path)["train/reward"]
    assert math.isnan(first) and second == math.inf


def test_it_loads_neither_torch_nor_a_thread() -> None:
    code = (
        "import sys, threading; from stepwell.monitors.tensorboard import TensorboardMonitor\n"
        "TensorboardMonitor(); print('torch' in sys.modules, threading.active_count())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "1"]


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed")
def test_wandb_that_is_not_installed_is_told_with_the_line_that_installs_it() -> None:
    with pytest.raises(ConfigError, match="pip install wandb"):
        WandbMonitor()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_writes_a_run_without_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monitor = WandbMonitor()
    monitor.start(RunInfo(tmp_path, "r", "frozenlake", "steppo", 7, 5, {"seed": 7}))
    monitor.record(update(1, 0.5))
    monitor.close()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    written = file.read_bytes()
    assert b"train/reward" in written and b"train/reward/format" in written
