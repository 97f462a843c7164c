"""Trackio and MLflow, with the real packages where they are installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from stepwell.core.errors import ConfigError
from stepwell.monitors.base import LogEntry, Monitor, RunInfo
from stepwell.monitors.mlflow import EXPERIMENT, MlflowMonitor, flatten_settings
from stepwell.monitors.tensorboard import name_values
from stepwell.monitors.trackio import PROJECT, TrackioMonitor

CONFIG = {"seed": 7, "env": {"name": "frozenlake", "options": {"size": 4}}, "rewards": {"parts": []}}
has_trackio, has_mlflow = find_spec("trackio") is not None, find_spec("mlflow") is not None


def record(monitor: Monitor, folder: Path, updates: range, resumed_from: int | None = None) -> None:
    """A run that is evaluated after every update, up to where it ends or is cut off."""
    monitor.start(
        RunInfo(folder, "r", "frozenlake", "steppo", 7, 5, CONFIG, resumed_from, id="0123456789abcdef")
    )
    for k in updates:
        monitor.record(LogEntry("update", k, k, 10 * k, {"reward": k / 2, "reward/format": 0.25}))
        monitor.record(LogEntry("eval", k, k, 10 * k, {"success": k / 10}))
    monitor.record(LogEntry("event", updates[-1], 9.0, 90, text="the end"))
    monitor.close()


def test_names_say_whether_a_figure_is_of_training_or_of_evaluation() -> None:
    entry = LogEntry("eval", 2, 2.0, 20, {"success": 0.75})
    assert name_values(entry) == {"eval/success": 0.75}


def test_settings_become_parameters_by_their_dotted_names() -> None:
    assert flatten_settings(CONFIG) == [
        ("seed", 7),
        ("env.name", "frozenlake"),
        ("env.options.size", 4),
        ("rewards.parts", []),
    ]


@pytest.mark.parametrize(
    ("monitor", "extra", "is_there"),
    [(TrackioMonitor, "trackio", has_trackio), (MlflowMonitor, "mlflow", has_mlflow)],
)
def test_a_package_that_is_not_installed_is_told_with_its_extra(
    monitor: type[Monitor], extra: str, is_there: bool
) -> None:
    if is_there:
        pytest.skip(f"{extra} is installed")
    with pytest.raises(ConfigError, match=rf"monitor.{extra} needs .*pip install 'stepwell\[{extra}\]'"):
        monitor()


@pytest.mark.slow
@pytest.mark.skipif(not has_trackio, reason="trackio is not installed (extra trackio)")
def test_trackio_keeps_the_curves_of_a_run_and_of_its_continuation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    record(TrackioMonitor(), tmp_path / "r", range(1, 4))
    record(TrackioMonitor(), tmp_path / "r", range(4, 6), resumed_from=3)
    assert capsys.readouterr().out == ""
    from trackio import context_vars
    from trackio.sqlite_storage import SQLiteStorage

    assert context_vars.current_run.get() is None  # else it is finished again, aloud, when Python ends
    (name,) = SQLiteStorage.get_runs(PROJECT)
    assert name == "r-01234567"
    logs = SQLiteStorage.get_logs(PROJECT, name)
    assert [(row["step"], row["train/reward"]) for row in logs if "train/reward" in row] == [
        (k, k / 2) for k in range(1, 6)
    ]
    assert [row["eval/success"] for row in logs if "eval/success" in row] == [k / 10 for k in range(1, 6)]


@pytest.mark.slow
@pytest.mark.skipif(not has_mlflow, reason="mlflow is not installed (extra mlflow)")
def test_mlflow_keeps_settings_and_curves_in_a_database_beside_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    record(MlflowMonitor(), tmp_path / "r", range(1, 4))
    record(MlflowMonitor(), tmp_path / "r", range(4, 6), resumed_from=3)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert run.info.run_name == "r" and run.info.status == "FINISHED"
    assert run.data.params["env.options.size"] == "4" and run.data.tags["recipe"] == "steppo"
    curve = client.get_metric_history(run.info.run_id, "train/reward/format")
    assert [(metric.step, metric.value) for metric in curve] == [(k, 0.25) for k in range(1, 6)]
    assert run.data.metrics["eval/success"] == 0.5
