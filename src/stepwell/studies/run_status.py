"""The status of one run of a study, read from the files in its folder."""

from __future__ import annotations

from pathlib import Path

from stepwell.core.errors import EncodingError
from stepwell.monitors.summary import Summary, read_summary

DONE = ("finished", "stopped_early")
ERROR_FILE = "error.txt"
ELSEWHERE_FILE = "elsewhere.json"


def get_todo_path(folder: Path) -> Path:
    """While this file exists a run is not done, even if its training has ended."""
    return folder.parent / f"{folder.name}.todo"


def read_status(folder: Path) -> str:
    """The status of a run, from its folder alone: one of `DONE`, `failed`, `unfinished` or `waiting`."""
    summary = read_whole_summary(folder)
    if summary is not None and summary.status in DONE and not get_todo_path(folder).exists():
        return summary.status
    if (folder / ERROR_FILE).exists():
        return "failed"
    return "unfinished" if (folder / "config.toml").exists() else "waiting"


def has_ended(folder: Path) -> bool:
    """Whether the training of a run has ended, even if evaluations elsewhere are still to do."""
    summary = read_whole_summary(folder)
    return summary is not None and summary.status in DONE


def read_whole_summary(folder: Path) -> Summary | None:
    """The summary of a run; None if there is none, or a damaged one."""
    try:
        return read_summary(folder)
    except EncodingError:  # torn by a full disk: the run is resumed and writes it again
        return None
