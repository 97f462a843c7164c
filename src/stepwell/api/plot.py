"""Curves of runs as a matplotlib figure: held-out success with its interval, then figures of training.

The figures and their titles are the report's (`monitors/panels.py`). The figure is made without `pyplot`, so
that no state of the notebook is touched, and it shows itself where it is the last line of a cell.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stepwell.core.errors import ConfigError, InputError
from stepwell.monitors.base import LogEntry
from stepwell.monitors.charts import smooth_values
from stepwell.monitors.panels import PANELS
from stepwell.monitors.svg import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepwell.api.run import Run

X_LABELS = {"update": "updates", "env_steps": "environment steps", "time_s": "wall time, seconds"}
_WIDTH, _HEIGHT, _DPI = 4.2, 3.2, 100
_SMOOTH_FROM = 60  # values; fewer are drawn as they are


def plot_runs(
    runs: Sequence[Run], *, metrics: Sequence[str], over: str, labels: Sequence[str] | None = None
) -> Figure:
    """One panel for held-out success and one per metric, with a line per run in each."""
    figure_type = _load_figure_type()
    if over not in X_LABELS:
        raise InputError(f"over must be one of {', '.join(X_LABELS)}, got {over!r}")
    if labels is not None and len(labels) != len(runs):
        raise InputError(f"labels: {len(labels)} for {len(runs)} runs; give one each")
    names = list(labels) if labels is not None else [label_run(run) for run in runs]
    num_panels = 1 + len(metrics)
    figure = figure_type(figsize=(_WIDTH * num_panels, _HEIGHT), dpi=_DPI, layout="constrained")
    axes = figure.subplots(1, num_panels, squeeze=False)[0]
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        color = COLORS[index % len(COLORS)]
        entries = run.entries
        _draw_evaluations(axes[0], entries, over, name, color)
        updates = [entry for entry in entries if entry.kind == "update"]
        for axis, metric in zip(axes[1:], metrics, strict=True):
            _draw_metric(axis, updates, metric, over, name, color)
    for axis, title in zip(axes, ["Held-out success", *map(title_metric, metrics)], strict=True):
        axis.set(title=title, xlabel=X_LABELS[over])
        axis.grid(alpha=0.3)
    axes[0].set_ylim(-0.02, 1.02)
    if len(runs) > 1 or labels is not None:
        axes[0].legend()
    return figure


def label_run(run: Run) -> str:
    """A run's name in a legend: its recipe, and the credit function that replaced the recipe's own."""
    recipe = run.config.recipe
    function = str(recipe.credit.get("function", "")).rpartition(":")[2]
    return ", ".join(filter(None, (recipe.name.rpartition(":")[2], function)))


def title_metric(name: str) -> str:
    """The title that the report gives a metric, or its name."""
    return next((panel.title for panel in PANELS if name in panel.metrics), name)


def _draw_evaluations(axis: Any, entries: Sequence[LogEntry], over: str, name: str, color: str) -> None:
    evals = [entry for entry in entries if entry.kind == "eval"]
    x = [getattr(entry, over) for entry in evals]
    rows = {key: [e.values.get(key, math.nan) for e in evals] for key in ("success", "low", "high")}
    axis.plot(x, rows["success"], color=color, marker="o", markersize=3.5, label=name)
    axis.fill_between(x, rows["low"], rows["high"], color=color, alpha=0.15, linewidth=0)


def _draw_metric(
    axis: Any, updates: Sequence[LogEntry], metric: str, over: str, name: str, color: str
) -> None:
    x = [getattr(entry, over) for entry in updates]
    y = [entry.values.get(metric, math.nan) for entry in updates]
    is_long = len(y) > _SMOOTH_FROM
    axis.plot(x, y, color=color, linewidth=0.8, alpha=0.35 if is_long else 1.0, label=name)
    if is_long:
        axis.plot(x, smooth_values(y, len(y) // 30), color=color)


def _load_figure_type() -> type[Figure]:
    """matplotlib's figure, which also shows itself in a notebook where `pyplot` was never imported."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "plot needs matplotlib: pip install 'stepwell[plot]'. Without it, open run.report in a browser, "
            "which shows the same curves"
        ) from error

    class ShownFigure(Figure):
        """A figure that a notebook shows."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    return ShownFigure
