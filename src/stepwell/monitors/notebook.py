"""A run's progress in a notebook: one display under the cell, updated in place.

    frozenlake-grpo: grpo on frozenlake, seed 0
    ▓▓▓▓▓▓▓░░░  update 28/40, 0:41, 0:18 left
    train 0.55  held-out 0.61 [0.52, 0.69]
    chart of both

The display is drawn at most every `every_s` seconds, after an entry that came: there is no thread, and a
cell that has ended shows the last state. Where there is no notebook, `console.py` shows progress.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from typing import Any

from stepwell.monitors.base import LogEntry, Monitor, RunInfo
from stepwell.monitors.charts import Series, draw_line_chart
from stepwell.monitors.console import format_entry
from stepwell.monitors.progress import Progress, format_duration, make_progress
from stepwell.monitors.svg import escape_text

NUM_NOTES = 4
_WIDTH, _HEIGHT = 560, 220


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook; IPython in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def hide_widget_warning() -> None:
    """Keep tqdm, which transformers imports, from complaining about widgets: none of its bars is shown."""
    if is_notebook():
        warnings.filterwarnings("ignore", message="IProgress not found")


class NotebookMonitor(Monitor):
    """Shows a run in a notebook's output."""

    def __init__(self, *, every_s: float = 1.0) -> None:
        self._every_s = every_s
        self._progress: Progress | None = None
        self._updates: list[LogEntry] = []
        self._notes: list[str] = []
        self._handle: Any = None
        self._drawn_at = -math.inf
        self._last_line = ""

    def start(self, info: RunInfo) -> None:
        self._progress = make_progress(info)
        self._draw()

    def phase(self, text: str) -> None:
        if self._progress is not None:
            self._progress.phase = text
            self._draw_if_due()

    def record(self, entry: LogEntry) -> None:
        assert self._progress is not None, "start comes before record"
        if entry.kind == "event":
            self.note(entry.text)
            return
        self._progress.add_entry(entry)
        self._last_line = format_entry(entry, self._progress)
        if entry.kind == "update":
            self._updates.append(entry)
        self._draw_if_due()

    def note(self, text: str) -> None:
        self._notes.append(text)
        self._draw_if_due()

    def close(self) -> None:
        if self._progress is not None:
            self._progress.phase = "ended"
            self._draw()

    def _draw_if_due(self) -> None:
        if time.monotonic() - self._drawn_at >= self._every_s:
            self._draw()

    def _draw(self) -> None:
        from IPython import display

        show: Any = display.display  # untyped
        assert self._progress is not None
        content = {
            "text/html": draw_progress(self._progress, self._updates, self._notes),
            "text/plain": self._last_line or self._progress.title,
        }
        if self._handle is None:
            self._handle = show(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._drawn_at = time.monotonic()


def draw_progress(progress: Progress, updates: list[LogEntry], notes: list[str]) -> str:
    """The state of a run as HTML without scripts."""
    info = progress.info
    done, whole = progress.update, max(info.num_updates, 1)
    if not done and "num_steps" in progress.values:  # the warm start has its own bar
        done, whole = int(progress.values["step"]), max(int(progress.values["num_steps"]), 1)
    clock = format_duration(progress.time_s)
    if (left := progress.describe_left()) and progress.phase != "ended":
        clock += f", {left} left"
    lines = [
        f"<b>{escape_text(info.name)}</b>: {escape_text(f'{info.recipe} on {info.env}, seed {info.seed}')}",
        f'<progress value="{min(done, whole)}" max="{whole}"></progress> '
        f"{escape_text(progress.title)}, {clock}",
        *(f"<small>{escape_text(note)}</small>" for note in notes[-NUM_NOTES:]),
    ]
    chart = _draw_chart(progress, updates) if updates or progress.evals else ""
    return f"<div>{'<br>'.join(lines)}</div>{chart}"


def _draw_chart(progress: Progress, updates: list[LogEntry]) -> str:
    train = Series(
        "success while training",
        [float(entry.update) for entry in updates],
        [entry.values.get("success", math.nan) for entry in updates],
        color=5,
        smooth=len(updates) // 30 if len(updates) > 60 else 0,
    )
    rows = {
        name: [entry.values.get(name, math.nan) for entry in progress.evals]
        for name in ("success", "low", "high")
    }
    held_out = Series(
        "held-out success",
        [float(entry.update) for entry in progress.evals],
        rows["success"],
        low=rows["low"],
        high=rows["high"],
        color=2,
        marks=True,
    )
    return draw_line_chart(
        [train, held_out],
        title="success over updates",
        x_label="updates",
        width=_WIDTH,
        height=_HEIGHT,
        y_range=(0.0, 1.0),
    )
