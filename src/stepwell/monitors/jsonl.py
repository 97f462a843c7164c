"""`metrics.jsonl`: the record of a run, one JSON object per line. Reports and studies read it.

A line holds `kind`, `update`, `time_s`, `env_steps` and, where it is known, `left_s`, then the values by
name (events have `text`). JSON has no NaN and no infinity: such a value is written as null, and `nonfinite`
holds the original, so that reading restores the same entry.

Invariants
* A line is written in one call and reaches the operating system before `record` returns: a
  killed run loses nothing that it recorded. Only the last line can be torn, if the machine or its
  disk fails; it is removed before anything is appended.
* `rewind(update)` drops what was recorded after `update` and replaces the file in one step.
  Everything about the update of a checkpoint must be recorded before that checkpoint is written;
  then a resumed run leaves the same lines as one that was never stopped.
* Damage anywhere but in the last line is an error with the line's number.
"""

from __future__ import annotations

import errno
import json
import math
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, ClassVar

from stepwell.core.disk import atomic_write, make_write_error
from stepwell.core.errors import ConfigError, EncodingError
from stepwell.monitors.base import RESERVED, LogEntry, Monitor, RunInfo

FILE_NAME = "metrics.jsonl"


class JsonlMonitor(Monitor):
    """Appends every entry to `metrics.jsonl` of the run folder; the only monitor that a run requires."""

    required: ClassVar[bool] = True

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: FileIO | None = None
        self._last = LogEntry("event", update=0, time_s=0.0, env_steps=0)

    def start(self, info: RunInfo) -> None:
        path = info.folder / FILE_NAME
        if info.resumed_from is not None:
            rewind(path, info.resumed_from)
            self._last = next(reversed(read_entries(path)), self._last)
        elif path.exists() and path.stat().st_size > 0:
            raise ConfigError(
                f"{path} already holds a run; continue it with --resume, or choose another `name`"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(path, "ab")
        except OSError as error:
            raise make_write_error(path, error) from error
        self._path = path

    def record(self, entry: LogEntry) -> None:
        self._append_line(_encode_entry(entry))
        self._last = entry

    def note(self, text: str) -> None:
        """Record an event with the update and time of the last entry."""
        last = self._last
        self.record(LogEntry("event", last.update, last.time_s, last.env_steps, text=text))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def _append_line(self, line: bytes) -> None:
        assert self._file is not None and self._path is not None, "start comes before record"
        size = self._file.seek(0, 2)
        try:
            if self._file.write(line) != len(line):  # a full disk writes only a part
                raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            with suppress(OSError):  # otherwise a torn last line remains, which every reader skips
                self._file.truncate(size)
            raise make_write_error(self._path, error) from error


def read_entries(path: Path) -> list[LogEntry]:
    """All entries of the file, in order; a torn last line is skipped, any other damage is an error.

    A missing file has no entries.
    """
    return [entry for entry, _ in _read_lines(path)]


def rewind(path: Path, update: int) -> None:
    """Drop every entry after `update`, and a torn last line. The warm start comes before update 0.

    A negative `update` drops everything. A missing file is not created.
    """
    if not path.exists():
        return
    kept = [
        line
        for entry, line in _read_lines(path)
        if update >= 0 and (entry.kind == "warm_start" or entry.update <= update)
    ]
    whole = b"".join(line + b"\n" for line in kept)
    if whole != path.read_bytes():
        atomic_write(path, whole)


def _read_lines(path: Path) -> list[tuple[LogEntry, bytes]]:
    lines = (path.read_bytes() if path.exists() else b"").split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append((decode_line(line), line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines):
                break
            raise EncodingError(
                f"line {number} of {path} is damaged ({error}); delete that line to use the rest"
            ) from error
    return entries


def _encode_entry(entry: LogEntry) -> bytes:
    fields: dict[str, Any] = {
        "kind": entry.kind,
        "update": int(entry.update),
        "time_s": round(float(entry.time_s), 4),
        "env_steps": int(entry.env_steps),
    }
    nonfinite = {}
    for name, value in entry.values.items():
        number = value if isinstance(value, int) else float(value)
        if not math.isfinite(number):
            nonfinite[name] = str(number)
        fields[name] = None if name in nonfinite else number
    if nonfinite:
        fields["nonfinite"] = nonfinite
    if entry.left_s is not None:
        fields["left_s"] = round(entry.left_s, 1)
    if entry.text:
        fields["text"] = entry.text
    return json.dumps(fields, allow_nan=False).encode() + b"\n"


def decode_line(line: bytes) -> LogEntry:
    """One line of the file as its entry; a damaged one raises what JSON and Python raise."""
    fields = json.loads(line)
    nonfinite = fields.get("nonfinite", {})
    values = {name: value for name, value in fields.items() if name not in RESERVED}
    values |= {name: float(value) for name, value in nonfinite.items()}
    return LogEntry(
        kind=fields["kind"],
        update=int(fields["update"]),
        time_s=float(fields["time_s"]),
        env_steps=int(fields["env_steps"]),
        values=values,
        text=fields.get("text", ""),
        left_s=fields.get("left_s"),
    )
