"""The folder of a study: one session at a time, and the same runs in every session.

Invariants
* Workers inherit the lock, so it is free only when all workers of an earlier session have ended. Workers
  whose study was killed save and stop by themselves; the next session waits for them.
* Runs may be added to a study. An existing run keeps its settings; other settings are refused with the
  difference.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from stepwell.config.renamed import rename_key, rename_value
from stepwell.config.run import RunConfig
from stepwell.config.study import PlannedRun
from stepwell.config.writing import flatten_tables
from stepwell.core.disk import atomic_write
from stepwell.core.errors import ConfigError

ORPHANS_S = 90.0  # how long to wait for workers whose study was killed
LOOK_EVERY_S = 0.2
_LEFT_OUT = ("name", "folder")  # where a run is, not what it does


@contextmanager
def lock_folder(folder: Path, console: Console | None) -> Iterator[int]:
    """Hold the folder's lock, which workers inherit: free only when all of an earlier session have ended."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--folder: cannot make {folder} ({error.strerror}); choose another") from error
    with (folder / ".lock").open("a+") as file:
        _wait_for_lock(file, folder, console)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _wait_for_lock(file: Any, folder: Path, console: Console | None) -> None:
    """Take the lock; waits for workers whose study was killed, which are saving."""
    until, is_announced = time.monotonic() + ORPHANS_S, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            if _is_alive(holder) or time.monotonic() > until:
                raise ConfigError(
                    f"another session (process {holder or 'unknown'}) is running in {folder}; wait for it, "
                    "or give another --folder"
                ) from None
        if not is_announced:
            (console or Console()).print("runs of an earlier session are still saving; waiting for them")
            is_announced = True
        time.sleep(LOOK_EVERY_S)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def adopt_folder(folder: Path, runs: Sequence[PlannedRun], quick: bool, restart: bool) -> None:
    """Make the folder this study's, or check that it is."""
    file = folder / "plan.json"
    wanted = {run.name: _flatten_settings(run.config) for run in runs}
    if restart and file.exists():
        for name in ("runs", "warm", "logs"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "results.json").unlink(missing_ok=True)
    elif file.exists():
        if difference := _list_differences(read_known_runs(folder), wanted):
            raise ConfigError(
                f"{folder} holds a study with other settings: {'; '.join(difference)}. "
                "Give another --folder, or --restart to delete its runs"
            )
    elif (folder / "runs").exists():
        raise ConfigError(f"--folder: {folder} has runs in it but no study; give another one")
    atomic_write(file, json.dumps({"quick": quick, "runs": wanted}, indent=1) + "\n")


def read_known_runs(folder: Path) -> dict[str, Any]:
    """Settings of the runs that earlier sessions planned, by name."""
    file = folder / "plan.json"
    if not file.exists():
        return {}
    runs: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["runs"]
    return {
        name: {rename_key(key): rename_value(key, value) for key, value in settings.items()}
        for name, settings in runs.items()
    }


def _flatten_settings(config: RunConfig) -> dict[str, Any]:
    values = config.model_dump(mode="json", exclude=set(_LEFT_OUT))
    del values["warm_start"]["cache"]
    return {".".join(path): value for path, value in flatten_tables(values)}


def _list_differences(known: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What has changed for existing runs: each change once, with the runs it concerns."""
    changes: dict[str, list[str]] = {}
    defaults = _flatten_settings(RunConfig())  # a setting that did not exist then had its default
    for name, settings in known.items():
        if name not in wanted:
            changes.setdefault("no longer there", []).append(name)
            continue
        for key in sorted(settings.keys() | wanted[name].keys()):
            old, new = settings.get(key, defaults.get(key)), wanted[name].get(key)
            if old != new:
                changes.setdefault(f"{key} {_format_value(old)} -> {_format_value(new)}", []).append(name)
    return [f"{change} ({_describe_runs(names, len(known))})" for change, names in changes.items()]


def _format_value(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _describe_runs(names: Sequence[str], total: int) -> str:
    if len(names) == total:
        return "all runs"
    return names[0] if len(names) == 1 else f"{len(names)} runs such as {names[0]}"


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """The records of earlier sessions; earlier versions called them sittings."""
    file = folder / "results.json"
    if not file.exists():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    sessions = [dict(item) for item in content.get("sessions", content.get("sittings", []))]
    for session in sessions:
        if session["ending"] in ("running", "at work"):  # it was killed before it could record its end
            session["ending"] = "killed"
    return sessions
