"""TensorBoard: the metrics as event files in `tensorboard/` of the run folder.

The events are written with the `tensorboard` package's own record writer: it needs no torch and
starts no thread. One entry is one event; its step is the update. Tags are `train/…` for updates,
`eval/…` and `warm_start/…`; notes and the configuration are text.

A resumed run writes a new file that begins with the update it continues from. TensorBoard then
ignores what older files say about later updates, so that nothing is shown twice.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from stepwell.core.errors import ConfigError
from stepwell.monitors.base import LogEntry, Monitor, RunInfo

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

FOLDER_NAME = "tensorboard"
GROUPS = {"update": "train", "eval": "eval", "warm_start": "warm_start"}


def name_values(entry: LogEntry) -> dict[str, float]:
    """The values of an entry under the names that dashboards show: `train/reward`, `eval/success`."""
    group = GROUPS[entry.kind]
    return {f"{group}/{name}": value for name, value in entry.values.items()}


class TensorboardMonitor(Monitor):
    """Writes event files that `tensorboard --logdir runs` shows live."""

    def __init__(self) -> None:
        try:
            import tensorboard.summary.writer.record_writer  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "monitor.tensorboard needs the package tensorboard: pip install tensorboard, "
                "or set monitor.tensorboard = false"
            ) from error
        self._writer: Any = None
        self._update = 0

    def start(self, info: RunInfo) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder = info.folder / FOLDER_NAME
        folder.mkdir(parents=True, exist_ok=True)
        # readers sort the files of a folder by name, so the time comes first
        name = f"events.out.tfevents.{time.time():017.6f}.{os.getpid()}.{secrets.token_hex(2)}"
        self._writer = RecordWriter((folder / name).open("wb"))
        self._write_event(file_version="brain.Event:2")
        if info.resumed_from is not None:
            start = SessionLog(status=SessionLog.START)
            self._write_event(session_log=start, step=max(info.resumed_from + 1, 0))
        self._write_text("config", "```json\n" + json.dumps(info.config, indent=2, default=str) + "\n```")

    def record(self, entry: LogEntry) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._update = entry.update
        if entry.kind == "event":
            self._write_text("events", entry.text)
            return
        places = name_values(entry) | {f"{GROUPS[entry.kind]}/env_steps": entry.env_steps}
        values = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in places.items()]
        self._write_event(summary=Summary(value=values), step=entry.update)

    def note(self, text: str) -> None:
        self._write_text("events", text)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _write_text(self, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto

        plugin = SummaryMetadata.PluginData(plugin_name="text")
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()])
        tensor.tensor_shape.dim.add(size=1)
        value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)
        self._write_event(summary=Summary(value=[value]), step=self._update)

    def _write_event(self, summary: Summary | None = None, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        assert self._writer is not None, "start comes before record"
        self._writer.write(Event(wall_time=time.time(), summary=summary, **fields).SerializeToString())
        self._writer.flush()
