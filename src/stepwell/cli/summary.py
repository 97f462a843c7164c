"""The last line of a run: what it came to and where to read more, from the run's own files."""

from __future__ import annotations

import json
from pathlib import Path


def print_summary(folder: Path) -> None:
    """`held-out success 0.31 -> 0.92  report runs/NAME/report.html`, as far as it is known."""
    print(summary_line(folder))


def summary_line(folder: Path) -> str:
    """That line, of a finished run."""
    report = folder / "report.html"
    where = f"report {report}" if report.is_file() else f"run {folder}"
    file = folder / "summary.json"
    if not file.is_file():
        return where
    summary = json.loads(file.read_text(encoding="utf-8"))
    before, after = summary["success_before"], summary["success_after"]
    return f"held-out success {before:.2f} -> {after:.2f}  {where}"
