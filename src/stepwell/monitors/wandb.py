"""Weights & Biases: the metrics, over updates.

The package is checked when the monitor is created, so that a missing package is reported before the
run computes anything. A connection that fails later only ends the logging. Metrics are logged under
`train/…`, `eval/…` and `warm_start/…` against `update`, not against W&B's own counter, which can only
increase and which a resumed run could not rewind.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from typing import Any

from stepwell.core.errors import ConfigError
from stepwell.monitors.base import LogEntry, Monitor, RunInfo
from stepwell.monitors.tensorboard import name_values


class WandbMonitor(Monitor):
    """Logs to W&B; WANDB_MODE, WANDB_PROJECT and the login are read by the package itself."""

    def __init__(self, project: str = "stepwell") -> None:
        if find_spec("wandb") is None:
            raise ConfigError(
                "monitor.wandb needs the package wandb: pip install wandb, or set monitor.wandb = false"
            )
        self._project = project
        self._run: Any = None

    def start(self, info: RunInfo) -> None:
        import wandb

        self._run = wandb.init(
            project=self._project,
            name=info.name,
            id=info.id or hashlib.sha256(str(info.folder.resolve()).encode()).hexdigest()[:16],
            resume="allow" if info.resumed_from is not None else None,
            dir=str(info.folder),
            config=info.config,
            tags=[info.env, info.recipe],
        )
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def record(self, entry: LogEntry) -> None:
        if entry.kind == "event":  # messages are for the console and metrics.jsonl
            return
        times = {"update": entry.update, "time_s": entry.time_s, "env_steps": entry.env_steps}
        self._run.log(times | name_values(entry))

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
        self._run = None
