"""How a run ended, in a line from the run's own files."""

from __future__ import annotations

from pathlib import Path


def describe_run(folder: Path) -> str:
    """`held-out success 0.31 -> 0.92  report runs/NAME/report.html`, as far as it is known.

    Settings that were changed on a resume come in lines before it.
    """
    from stepwell.monitors.summary import describe_changes, describe_success, read_summary

    report = folder / "report.html"
    where = f"report {report}" if report.is_file() else f"run {folder}"
    summary = read_summary(folder)
    if summary is None:
        return where
    changes = [f"changed: {change}" for change in describe_changes(summary)]
    return "\n".join([*changes, f"{describe_success(summary)}  {where}"])
