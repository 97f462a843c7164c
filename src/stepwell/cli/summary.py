"""How a run ended: its figures, and whether it was interrupted, from the run's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def summary_line(folder: Path) -> str:
    """`held-out success 0.31 -> 0.92  report runs/NAME/report.html`, as far as it is known."""
    report = folder / "report.html"
    where = f"report {report}" if report.is_file() else f"run {folder}"
    summary = _read(folder)
    if not summary:
        return where
    figures = (summary["success_before"], summary["success_after"])
    before, after = ("?" if figure is None else f"{figure:.2f}" for figure in figures)
    return f"held-out success {before} -> {after}  {where}"


def was_interrupted(folder: Path) -> bool:
    """Whether the run ended because somebody asked it to."""
    return _read(folder).get("status") == "interrupted"


def _read(folder: Path) -> dict[str, Any]:
    file = folder / "summary.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
