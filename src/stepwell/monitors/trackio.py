"""Trackio: the metrics in a local database that `trackio show --project stepwell` draws.

Nothing leaves the machine unless the package is configured to send it (it reads `TRACKIO_SPACE_ID` and
`TRACKIO_SERVER_URL`). Metrics are logged under `train/…`, `eval/…` and `warm_start/…` with the update as
step. A resumed run continues under its name; what it had logged after its checkpoint is logged again. What
the package prints is dropped, because it would break into the console's lines.
"""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import Any

from stepwell.core.errors import ConfigError
from stepwell.monitors.base import LogEntry, Monitor, RunInfo
from stepwell.monitors.tensorboard import name_values

PROJECT = "stepwell"


class TrackioMonitor(Monitor):
    """Logs to Trackio."""

    def __init__(self, project: str = PROJECT) -> None:
        if find_spec("trackio") is None:
            raise ConfigError(
                "monitor.trackio needs the package trackio: pip install 'stepwell[trackio]', "
                "or set monitor.trackio = false"
            )
        self._project = project
        self._run: Any = None

    def start(self, info: RunInfo) -> None:
        import trackio

        with redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=self._project,
                name=f"{info.name}-{info.id[:8]}" if info.id else info.name,
                group=info.env,
                config=info.config,
                resume="never" if info.resumed_from is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def record(self, entry: LogEntry) -> None:
        if entry.kind == "event":  # messages are for the console and metrics.jsonl
            return
        times = {"time_s": entry.time_s, "env_steps": entry.env_steps}
        self._run.log(times | name_values(entry), step=entry.update)

    def close(self) -> None:
        if self._run is not None:
            import trackio

            with redirect_stdout(io.StringIO()):
                trackio.finish()  # `self._run.finish()` would leave the package to finish it again at exit
        self._run = None
