"""The curves of a report: small charts of training, and the learning curve from evaluations.

`panels` groups the metrics and explains them. A metric that never changed is not drawn; its value is
listed instead. An unknown metric is shown under its raw name, so that everything recorded is visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.monitors.base import LogEntry
from stepwell.monitors.charts import ReferenceLine, Series, draw_line_chart
from stepwell.monitors.panel import Panel
from stepwell.monitors.panels import PANELS, WARM_START_PANELS

WIDTH, HEIGHT = 340, 190
SAME = 1e-5  # relative; smaller differences are 32-bit rounding
NOTHING = 1e-10  # what is never larger is rounding around 0


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """A panel of the page; `last` is the mean over the last tenth of the run.

    `svg` is empty if nothing changed; then `last` is the value.
    """

    title: str
    meaning: str
    last: str
    svg: str = ""


def draw_training_panels(entries: Sequence[LogEntry]) -> list[DrawnPanel]:
    """Panels of everything recorded in updates: known metrics first, then unknown ones."""
    updates = [entry for entry in entries if entry.kind == "update"]
    return _draw_all(PANELS, updates, [float(entry.update) for entry in updates])


def draw_warm_start_panels(entries: Sequence[LogEntry]) -> list[DrawnPanel]:
    """Panels of the warm start, over its own updates."""
    warm = [entry for entry in entries if entry.kind == "warm_start"]
    has_steps = all("step" in entry.values for entry in warm)
    x = [entry.values["step"] if has_steps else entry.time_s for entry in warm]
    return _draw_all(WARM_START_PANELS, warm, x, hidden=("step", "num_steps"))


def _draw_all(
    panels: Sequence[Panel], entries: Sequence[LogEntry], x: Sequence[float], *, hidden: Sequence[str] = ()
) -> list[DrawnPanel]:
    left = list(dict.fromkeys(name for entry in entries for name in entry.values if name not in hidden))
    drawn: list[DrawnPanel] = []
    for panel in panels:
        chosen = panel.choose_metrics(left)
        left = [name for name in left if name not in chosen]
        drawn += _draw_panel(panel, chosen, entries, x)
    for name in left:
        drawn += _draw_panel(Panel(name, (name,), ""), [name], entries, x)
    return drawn


def draw_learning_curve(
    entries: Sequence[LogEntry], over: str, levels: Sequence[ReferenceLine], width: int
) -> str:
    """Held-out success with its interval, over `env_steps`, `time_s` or `update`."""
    evals = [entry for entry in entries if entry.kind == "eval"]
    labels = {"env_steps": "environment steps", "time_s": "wall time, seconds", "update": "updates"}
    rows = {
        name: [entry.values.get(name, math.nan) for entry in evals] for name in ("success", "low", "high")
    }
    has_band = all(name in entry.values for entry in evals for name in ("low", "high"))
    series = Series(
        "held-out success",
        [float(getattr(entry, over)) for entry in evals],
        rows["success"],
        low=rows["low"] if has_band else None,
        high=rows["high"] if has_band else None,
        color=2,
        marks=True,
    )
    return draw_line_chart(
        [series],
        title=f"held-out success over {labels[over]}",
        x_label=labels[over],
        width=width,
        height=340 if width > 500 else 260,
        y_range=(0.0, 1.0),
        levels=levels,
    )


def _draw_panel(
    panel: Panel, names: Sequence[str], entries: Sequence[LogEntry], x: Sequence[float]
) -> list[DrawnPanel]:
    """One chart, or one line of text for each metric if none of them ever changed."""
    rows = {name: [entry.values.get(name, panel.absent) for entry in entries] for name in names}
    if all(_is_constant(row) for row in rows.values()):
        return [
            DrawnPanel(_choose_title(panel, name, rows), panel.meaning, _format_constant(row))
            for name, row in rows.items()
        ]
    series = [
        Series(panel.get_label(name), x, row, color=index, smooth=len(row) // 30 if len(row) > 60 else 0)
        for index, (name, row) in enumerate(rows.items())
    ]
    svg = draw_line_chart(
        series,
        title=panel.title,
        width=WIDTH,
        height=HEIGHT,
        y_range=choose_range(panel, list(rows.values())),
    )
    if len(names) > 1:
        return [DrawnPanel(panel.title, panel.meaning, "", svg)]
    return [
        DrawnPanel(_choose_title(panel, names[0], rows), panel.meaning, _format_last(rows[names[0]]), svg)
    ]


def _is_constant(row: Sequence[float]) -> bool:
    """Whether there is nothing to draw: no finite value, or always the same value."""
    finite = [value for value in row if math.isfinite(value)]
    most = max(map(abs, finite), default=0.0)
    return most < NOTHING or max(finite) - min(finite) <= SAME * most


def _format_constant(row: Sequence[float]) -> str:
    """The constant value, and how often it was measured if not always."""
    finite = [value for value in row if math.isfinite(value)]
    if not 0 < len(finite) < len(row):
        return _format_last(finite)
    how_often = "once" if len(finite) == 1 else f"in {len(finite)} of {len(row)}"
    return f"{_format_last(finite)}, measured {how_often}"


def _choose_title(panel: Panel, name: str, rows: dict[str, list[float]]) -> str:
    return (
        panel.title if len(rows) == 1 and name in panel.metrics else f"{panel.title}: {panel.get_label(name)}"
    )


def choose_range(panel: Panel, rows: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The panel's own limits, if any; a lower limit of -1 applies only if values are below 0."""
    values = [value for row in rows for value in row if math.isfinite(value)]
    if panel.low is None or not values:
        return None
    low = max(panel.low, min(0.0, math.floor(min(values) * 5) / 5)) if panel.low < 0 else panel.low
    high = panel.high if panel.high is not None else max(values) * 1.05
    return (low, high if high > low else low + 1.0) if high >= low else None


def _format_last(row: Sequence[float]) -> str:
    tail = [value for value in row[-max(1, len(row) // 10) :] if math.isfinite(value)]
    if not tail:
        return "not a number"
    mean = sum(tail) / len(tail)
    return f"{mean:,.0f}" if 1000 <= abs(mean) < 1e15 else f"{mean:.3g}".replace("e-0", "e-")
