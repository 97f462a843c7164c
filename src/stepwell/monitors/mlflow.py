"""MLflow: settings as parameters and figures as metrics, in a database beside the run folders.

`mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` shows the runs of the folder `runs`. With
`MLFLOW_TRACKING_URI` they go where it points. Metrics are named `train/…`, `eval/…` and `warm_start/…`, and
their step is the update. A run is found again by its id, also under another name: a resumed one continues,
and what it had logged after its checkpoint is logged again.

The package reports its use to its makers by default; here this is switched off, unless
`MLFLOW_DISABLE_TELEMETRY` says something else.
"""

from __future__ import annotations

import os
import re
import time
from importlib.util import find_spec
from typing import Any

from stepwell.config.writing import flatten_tables
from stepwell.core.errors import ConfigError
from stepwell.monitors.base import LogEntry, Monitor, RunInfo
from stepwell.monitors.tensorboard import name_values

EXPERIMENT = "stepwell"
DATABASE = "mlflow.db"
RUN_TAG = "stepwell.run"
MAX_BATCH, MAX_PARAM_CHARS = 100, 500  # of the oldest server that is allowed
_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")


class MlflowMonitor(Monitor):
    """Logs to an MLflow tracking store."""

    def __init__(self, experiment: str = EXPERIMENT) -> None:
        if find_spec("mlflow") is None:
            raise ConfigError(
                "monitor.mlflow needs the package mlflow: pip install 'stepwell[mlflow]', "
                "or set monitor.mlflow = false"
            )
        self._experiment = experiment
        self._client: Any = None
        self._run_id = ""

    def start(self, info: RunInfo) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        database = f"sqlite:///{info.folder.resolve().parent / DATABASE}"
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or database)
        identity = info.id or str(info.folder.resolve())
        found = self._find_run(identity) if info.resumed_from is not None else None
        if found is not None:
            self._run_id = found
            self._client.update_run(found, status="RUNNING")
            return
        tags = {RUN_TAG: identity, "env": info.env, "recipe": info.recipe}
        self._run_id = self._client.create_run(
            self._get_experiment(), tags=tags, run_name=info.name
        ).info.run_id
        self._log_params(info.config)

    def _get_experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self._experiment))

    def _find_run(self, identity: str) -> str | None:
        asked = f"tags.`{RUN_TAG}` = '{identity}'"
        found = self._client.search_runs([self._get_experiment()], asked, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _log_params(self, config: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:MAX_PARAM_CHARS]) for name, value in flatten_settings(config)]
        for start in range(0, len(params), MAX_BATCH):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_BATCH])

    def record(self, entry: LogEntry) -> None:
        from mlflow.entities import Metric

        if entry.kind == "event":  # messages are for the console and metrics.jsonl
            return
        values = {"time_s": entry.time_s, "env_steps": float(entry.env_steps)} | name_values(entry)
        now = int(time.time() * 1000)
        metrics = [
            Metric(_NOT_ALLOWED.sub("_", name), float(value), now, entry.update)
            for name, value in values.items()
        ]
        for start in range(0, len(metrics), MAX_BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + MAX_BATCH])

    def close(self) -> None:
        if self._run_id:
            self._client.set_terminated(self._run_id)
        self._client, self._run_id = None, ""


def flatten_settings(config: dict[str, Any]) -> list[tuple[str, Any]]:
    """Settings by their dotted names.

    >>> flatten_settings({"seed": 1, "env": {"name": "sokoban"}})
    [('seed', 1), ('env.name', 'sokoban')]
    """
    return [(_NOT_ALLOWED.sub("_", ".".join(path)), value) for path, value in flatten_tables(config)]
