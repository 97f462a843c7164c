"""One run folder as the view reads it: metrics as they grow, settings, state, pool and credit.

    metrics.jsonl ─► MetricTail (only what is new) ─► entries ─► charts
    pool/, credit.db ─► trajectories                control.sock ─► status

Invariants
* Reading never changes a run. Only tags are written, to its pool.
* `metrics.jsonl` is read once; later calls read what was added. A file that became shorter (a resumed run
  rewinds it) is read again from its start.
* `stamp` changes whenever something that a page shows has changed.
"""

from __future__ import annotations

import json
import threading
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from stepwell.core.errors import EncodingError, StepwellError
from stepwell.monitors.base import LogEntry
from stepwell.monitors.jsonl import FILE_NAME as METRICS
from stepwell.monitors.jsonl import decode_line
from stepwell.monitors.summary import FILE_NAME as SUMMARY
from stepwell.monitors.summary import Summary, read_summary
from stepwell.pool import Pool, open_pool
from stepwell.runs.control import read_status
from stepwell.runs.run_lock import find_process
from stepwell.view.text_index import TextIndex

_STATUS_AGE_S = 1.0


@dataclass(eq=False)
class MetricTail:
    """The entries of a growing `metrics.jsonl`."""

    path: Path
    entries: list[LogEntry] = field(default_factory=list)
    _offset: int = 0
    _head: bytes = b""

    def read_new(self) -> list[LogEntry]:
        """All entries, after reading what was added."""
        size = self.path.stat().st_size if self.path.is_file() else 0
        if size < self._offset or (size and not self._is_same_file()):
            self.entries, self._offset, self._head = [], 0, b""
        if size > self._offset:
            self._read_lines()
        return self.entries

    def _is_same_file(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(self._head)) == self._head

    def _read_lines(self) -> None:
        with self.path.open("rb") as file:
            if not self._head:
                self._head = file.read(512)
            file.seek(self._offset)
            data = file.read()
        whole, _, _ = data.rpartition(b"\n")  # a line that is still being written comes next time
        for line in whole.split(b"\n") if whole else []:
            try:
                self.entries.append(decode_line(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # the report names damaged lines; a live view shows the others
        self._offset += len(whole) + 1 if whole else 0
        self._head = self._head[: self._offset]


@dataclass(eq=False)
class ViewedRun:
    """A run folder, or a pool alone (then `folder` is the pool's)."""

    name: str
    folder: Path
    pool_place: str | None = None

    def __post_init__(self) -> None:
        self._tail = MetricTail(self.folder / METRICS)
        self._lock = threading.Lock()
        self._status: tuple[float, dict[str, Any] | None] = (0.0, None)

    @property
    def is_pool_only(self) -> bool:
        return self.pool_place is not None

    @property
    def entries(self) -> list[LogEntry]:
        with self._lock:
            return self._tail.read_new()

    @cached_property
    def config(self) -> dict[str, Any]:
        try:
            return tomllib.loads((self.folder / "config.toml").read_text(errors="replace"))
        except (OSError, tomllib.TOMLDecodeError):
            return {}

    @property
    def env(self) -> str:
        return str(self.config.get("env", {}).get("name") or "")

    @property
    def recipe(self) -> str:
        return str(self.config.get("recipe", {}).get("name") or "steppo")

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def num_updates(self) -> int | None:
        planned = self.config.get("train", {}).get("num_updates")
        return None if planned is None else int(planned)

    @property
    def summary(self) -> Summary | None:
        try:
            return read_summary(self.folder)
        except EncodingError:
            return None

    @property
    def status(self) -> dict[str, Any] | None:
        """The status that the run reports; None if it does not run."""
        at, known = self._status
        if time.monotonic() - at > _STATUS_AGE_S:
            known = read_status(self.folder)
            self._status = (time.monotonic(), known)
        return known

    def forget_status(self) -> None:
        self._status = (0.0, None)

    @property
    def state(self) -> str:
        """`running`, `paused`, how it ended, or `unfinished`: nothing runs here, and it left no summary."""
        if self.is_pool_only:
            return "pool"
        if (status := self.status) is not None:
            return "paused" if status.get("is_paused") else "running"
        if find_process(self.folder, since=self.folder / SUMMARY) is not None:
            return "running"  # it starts, or writes its report
        summary = self.summary
        return summary.status.replace("_", " ") if summary else "unfinished"

    @property
    def stamp(self) -> str:
        """Changes when something changed."""
        parts = []
        for name in (METRICS, SUMMARY, "timeline.json", "pool/pool.db-wal", "pool/pool.db"):
            path = self.folder / name
            parts.append(str(path.stat().st_mtime_ns) if path.exists() else "-")
        return "|".join([*parts, self.state])

    @cached_property
    def pool(self) -> Pool | None:
        """The run's pool; None if it has none, or if it was deleted."""
        place, blobs = self._find_pool()
        if place is None:
            return None
        try:
            return open_pool(place, must_exist=True, blobs=blobs)
        except StepwellError:
            return None

    @cached_property
    def texts(self) -> TextIndex | None:
        """The texts of its trajectories, as far as searches have read them."""
        return None if self.pool is None else TextIndex(self.pool)

    def _find_pool(self) -> tuple[str | None, str | None]:
        if self.pool_place is not None:
            return self.pool_place, None
        given = self.config.get("pool", {})
        if url := given.get("url"):
            return str(url), given.get("blobs")
        offline = self.config.get("offline", {}).get("pool")
        if offline and not (self.folder / "pool").exists():
            return str(offline), None
        return (
            (str(self.folder / "pool"), None)
            if (self.folder / "pool" / "pool.db").is_file()
            else (None, None)
        )

    @property
    def tokenizer_folders(self) -> list[Path]:
        """Where this run's tokenizer may be: its checkpoints, then the model that it started from."""
        found = sorted(
            (self.folder / "checkpoints").glob("*/tokenizer.json"), key=lambda p: p.stat().st_mtime
        )
        model = self.config.get("policy", {}).get("model")
        return [path.parent for path in reversed(found)] + ([Path(str(model))] if model else [])

    def close(self) -> None:
        if "texts" in self.__dict__ and self.texts is not None:
            self.texts.close()
        if "pool" in self.__dict__ and self.pool is not None:
            self.pool.close()


def describe_states(states: Sequence[str]) -> str:
    """The states of a page's runs in a few words: `live`, `finished`, `1 of 2 live`; of pools nothing."""
    num_live, kinds = states.count("running"), set(states) - {"pool"}
    if len(kinds) == 1:
        return "live" if num_live else kinds.pop()
    return f"{num_live} of {len(states)} live" if kinds else ""


def read_study(folder: Path) -> dict[str, Any] | None:
    """`results.json` of a study folder; None if there is none (yet)."""
    try:
        return dict(json.loads((folder / "results.json").read_text()))
    except (OSError, ValueError):
        return None
