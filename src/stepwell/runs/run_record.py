"""`run.json`: the identity and the settings of a run, wherever its folder is.

    {"id": "5f0c…", "name": "lake", "settings": {…}, "changes": [{"update": 50, "time": "2026-01-31 12:00:00",
     "key": "train.num_updates", "old": 100, "new": 600}]}

* `id` is unique, for outside services that follow the run.
* `name` is the tag of the run's episodes in the pool. It stays when the folder is renamed or moved.
* `settings` are those that the run last trained with. A difference in `config.toml` or in
  `--resume RUN key=value` is a change, which `config/changing.py` allows or refuses.
* `changes` is the history of allowed changes.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from stepwell.config.changing import MEASURES, Change, find_changes, require_sound
from stepwell.config.run import RunConfig
from stepwell.core.disk import atomic_write
from stepwell.core.errors import EncodingError
from stepwell.core.ids import make_id
from stepwell.monitors import jsonl
from stepwell.runs.run_lock import LOCK_FILE

FILE_NAME = "run.json"
_LEFT_BY_A_START = {
    *("config.toml", FILE_NAME, jsonl.FILE_NAME, "summary.json", "report.html", "replays.json"),
    *("pool", "tensorboard", "agent_logs", "checkpoints", "reference.safetensors"),
    *("eval_episodes.jsonl", "timeline.json", "error.txt", "credit.db", "credit.db-wal", "credit.db-shm"),
}


@dataclass(slots=True)
class RunRecord:
    """The content of `run.json`."""

    id: str
    name: str
    settings: dict[str, Any]
    changes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def has_other_measure(self) -> bool:
        """Whether held-out success was measured differently at the start."""
        return any(change["key"] in MEASURES for change in self.changes)

    def add_changes(self, changes: list[Change], config: RunConfig, update: int) -> None:
        """Record changes that hold from this update on."""
        now = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        self.changes += [{"update": update, "time": now, **asdict(change)} for change in changes]
        self.settings = config.model_dump(mode="json")

    def write(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        atomic_write(folder / FILE_NAME, json.dumps(asdict(self), indent=1) + "\n")


def make_record(folder: Path, config: RunConfig) -> RunRecord:
    """The record of a fresh run."""
    return RunRecord(make_id("run"), folder.resolve().name, config.model_dump(mode="json"))


def read_record(folder: Path, config: RunConfig) -> RunRecord:
    """The record of a run; an older run without the file gets one from its name and settings."""
    path = folder / FILE_NAME
    if not path.exists():
        record = make_record(folder, config)
        record.name = config.name or record.name
        return record
    try:
        return RunRecord(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise EncodingError(
            f"{path} is damaged ({error}); delete it to continue with the settings of config.toml"
        ) from error


def check_changes(record: RunRecord, folder: Path, config: RunConfig) -> list[Change]:
    """How the wanted settings differ from the run's; refused if the run cannot continue with them."""
    changes = find_changes(record.settings, config)
    require_sound(changes, str(folder))
    return changes


def is_failed_start(folder: Path) -> bool:
    """Whether a folder holds only the files of a run that failed before it trained anything."""
    names = {path.name for path in folder.iterdir()}
    is_ours = LOCK_FILE in names and all(_is_left_by_a_start(name) for name in names)
    if not is_ours or any((folder / "checkpoints").glob("[!.]*")):
        return False
    try:
        entries = jsonl.read_entries(folder / jsonl.FILE_NAME)
    except EncodingError:
        return False
    return all(entry.kind == "event" for entry in entries)


def clear_failed_start(folder: Path) -> None:
    """Remove what a failed start left; call it only with the folder's lock held."""
    for path in folder.iterdir():
        if path.name != LOCK_FILE and _is_left_by_a_start(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_left_by_a_start(name: str) -> bool:
    is_half_written = name.startswith(".") and name.endswith(".tmp")
    return name in _LEFT_BY_A_START or name == LOCK_FILE or is_half_written
