"""The folder of a study: one sitting at a time, and the same runs in every sitting.

Invariants
* The lock is inherited by workers: it is free only when all of an earlier sitting are gone. Those whose
  study was killed are saving themselves, and are waited for.
* Runs may be added to a study; a run that is there keeps its settings, and other ones are refused with
  the difference.
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

from stepwell.config.run import RunConfig
from stepwell.config.study import PlannedRun, flattened
from stepwell.core.errors import ConfigError
from stepwell.monitors.files import atomic_write

ORPHANS_S = 90.0  # how long to wait for workers whose study was killed
LOOK_EVERY_S = 0.2
_LEFT_OUT = ("name", "folder")  # where a run is, not what it does


@contextmanager
def hold(folder: Path, console: Console | None) -> Iterator[int]:
    """The folder's lock, which workers inherit: free only when all of an earlier sitting are gone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--folder: cannot make {folder} ({error.strerror}); choose another") from error
    with (folder / ".lock").open("a+") as file:
        _wait_for(file, folder, console)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _wait_for(file: Any, folder: Path, console: Console | None) -> None:
    """Take the lock. Workers whose study was killed are saving themselves: those are waited for."""
    until, told = time.monotonic() + ORPHANS_S, False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            if _is_alive(holder) or time.monotonic() > until:
                raise ConfigError(
                    f"another sitting (process {holder or 'unknown'}) is at work in {folder}; wait for it, "
                    "or give another --folder"
                ) from None
        if not told:
            (console or Console()).print("runs of an earlier sitting are still saving; waiting for them")
            told = True
        time.sleep(LOOK_EVERY_S)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def adopt(folder: Path, runs: Sequence[PlannedRun], quick: bool, restart: bool) -> None:
    """Make the folder this study's, or make sure that it is."""
    file = folder / "plan.json"
    wanted = {run.name: _essence(run.config) for run in runs}
    if restart and file.exists():
        for name in ("runs", "warm", "logs"):
            shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "results.json").unlink(missing_ok=True)
    elif file.exists():
        if difference := _difference(known_runs(folder), wanted):
            raise ConfigError(
                f"{folder} holds a study with other settings: {'; '.join(difference)}. "
                "Give another --folder, or --restart to throw its runs away"
            )
    elif (folder / "runs").exists():
        raise ConfigError(f"--folder: {folder} has runs in it but no study; give another one")
    atomic_write(file, json.dumps({"quick": quick, "runs": wanted}, indent=1) + "\n")


def known_runs(folder: Path) -> dict[str, Any]:
    """Settings of the runs that earlier sittings planned, by name."""
    file = folder / "plan.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))["runs"]) if file.exists() else {}


def _essence(config: RunConfig) -> dict[str, Any]:
    values = config.model_dump(mode="json", exclude=set(_LEFT_OUT))
    del values["warm_start"]["cache"]
    return {".".join(path): value for path, value in flattened(values)}


def _difference(known: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What has changed for runs that are there: each change once, with the runs it concerns."""
    changes: dict[str, list[str]] = {}
    defaults = _essence(RunConfig())  # a setting that did not exist then was what its default is
    for name, settings in known.items():
        if name not in wanted:
            changes.setdefault("no longer there", []).append(name)
            continue
        for key in sorted(settings.keys() | wanted[name].keys()):
            old, new = settings.get(key, defaults.get(key)), wanted[name].get(key)
            if old != new:
                changes.setdefault(f"{key} {_shown(old)} -> {_shown(new)}", []).append(name)
    return [f"{change} ({_named(names, len(known))})" for change, names in changes.items()]


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value)


def _named(names: Sequence[str], total: int) -> str:
    if len(names) == total:
        return "all runs"
    return names[0] if len(names) == 1 else f"{len(names)} runs such as {names[0]}"


def earlier_sittings(folder: Path) -> list[dict[str, Any]]:
    """What earlier sittings wrote down of themselves."""
    file = folder / "results.json"
    if not file.exists():
        return []
    sittings = [dict(item) for item in json.loads(file.read_text(encoding="utf-8"))["sittings"]]
    for sitting in sittings:
        if sitting["ending"] == "at work":  # it was killed before it could write down its end
            sitting["ending"] = "killed"
    return sittings
