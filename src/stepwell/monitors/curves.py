"""Which curves a report shows, and what each of them means.

A `Panel` is one small chart of training: the metrics it draws, and one sentence on what is
healthy. Metrics nobody named here (of a custom recipe or reward) get a panel of their own,
so that whatever was recorded can be seen. The learning curve is drawn from evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.monitors.base import Entry
from stepwell.monitors.charts import Level, Series, line_chart

WIDTH, HEIGHT = 340, 190


@dataclass(frozen=True, slots=True)
class Panel:
    """One small chart. A metric that ends in `/` stands for all names that begin with it."""

    title: str
    metrics: tuple[str, ...]
    meaning: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel as the page shows it; `last` is the mean over the last tenth of the run."""

    title: str
    meaning: str
    last: str
    svg: str


PANELS = (
    Panel("Success while training", ("success",), "Share of sampled episodes that succeed.", 0.0, 1.0),
    Panel("Reward", ("reward",), "Mean return of an episode; it should rise with success."),
    Panel("Reward parts", ("reward/",), "What the return consists of."),
    Panel(
        "Entropy",
        ("entropy",),
        "Uncertainty of the policy per token. A slow fall is learning, a sudden one ends exploration.",
        0.0,
    ),
    Panel("KL", ("kl",), "Distance from the reference policy. Steady growth is normal, a jump is not."),
    Panel("Ratio", ("ratio",), "New over old probability of the sampled actions; stays near 1."),
    Panel(
        "Clipped", ("clip_share",), "Share beyond the clip range; much above 0.3 is too large a step.", 0.0
    ),
    Panel(
        "Explained variance",
        ("explained_variance",),
        "How much of the returns the critic foresees: 1 is all, 0 is none, below 0 it misleads.",
        -1.0,
        1.0,
    ),
    Panel("Losses", ("loss/",), "Only the value loss should fall; the policy loss has no such meaning."),
    Panel(
        "Gradient norm", ("grad_norm",), "Before clipping. Peaks are harmless, a rising floor is not.", 0.0
    ),
    Panel("Learning rate", ("learning_rate",), "As scheduled.", 0.0),
    Panel("Asked form", ("format_share",), "Share of replies in exactly the asked form.", 0.0, 1.0),
    Panel("Turns", ("turns",), "Mean number of turns of an episode.", 0.0),
    Panel("Tokens per second", ("tokens_per_s",), "Sampled tokens over the time of the whole update.", 0.0),
    Panel("Tokens per update", ("tokens",), "Tokens learnt from.", 0.0),
    Panel("Seconds per update", ("time/",), "Where the time of an update goes.", 0.0),
    Panel("Failures of the agent", ("agent_failures/",), "Episodes that your agent failed, by kind.", 0.0),
    Panel("Failures of the system", ("infra_errors",), "Episodes lost to it; they are sampled again.", 0.0),
)


def training_panels(entries: Sequence[Entry]) -> list[Drawn]:
    """A panel for everything recorded in updates: those of `PANELS`, then what is not named there."""
    updates = [entry for entry in entries if entry.kind == "update"]
    names = list(dict.fromkeys(name for entry in updates for name in entry.values))
    claimed = {name for panel in PANELS for name in _names_of(panel, names)}
    others = [Panel(name, (name,), "") for name in names if name not in claimed]
    drawn = [_draw(panel, _names_of(panel, names), updates) for panel in (*PANELS, *others)]
    return [panel for panel in drawn if panel is not None]


def warm_start_panels(entries: Sequence[Entry]) -> list[Drawn]:
    """What was recorded in the warm start, over its time."""
    warm = [entry for entry in entries if entry.kind == "warm_start"]
    names = dict.fromkeys(name for entry in warm for name in entry.values)
    panels = [Panel(f"Warm start: {name}", (name,), "Supervised start, over its seconds.") for name in names]
    drawn = [_draw(panel, list(panel.metrics), warm, over_time=True) for panel in panels]
    return [panel for panel in drawn if panel is not None]


def learning_curve(entries: Sequence[Entry], over: str, levels: Sequence[Level], width: int) -> str:
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
    return line_chart(
        [series],
        title=f"held-out success over {labels[over]}",
        x_label=labels[over],
        width=width,
        height=340 if width > 500 else 260,
        y_range=(0.0, 1.0),
        levels=levels,
    )


def _names_of(panel: Panel, names: Sequence[str]) -> list[str]:
    return [
        name
        for metric in panel.metrics
        for name in names
        if name == metric or (metric.endswith("/") and name.startswith(metric))
    ]


def _draw(
    panel: Panel, names: Sequence[str], entries: Sequence[Entry], over_time: bool = False
) -> Drawn | None:
    x = [entry.time_s if over_time else float(entry.update) for entry in entries]
    rows = {name: [entry.values.get(name, math.nan) for entry in entries] for name in names}
    if not rows or (panel.metrics == ("infra_errors",) and not any(rows["infra_errors"])):
        return None
    series = [
        Series(_label(name, panel), x, row, color=index, smooth=len(row) // 30 if len(row) > 60 else 0)
        for index, (name, row) in enumerate(rows.items())
    ]
    svg = line_chart(
        series, title=panel.title, width=WIDTH, height=HEIGHT, y_range=_range(panel, list(rows.values()))
    )
    return Drawn(panel.title, panel.meaning, _last(rows[names[0]]) if len(names) == 1 else "", svg)


def _label(name: str, panel: Panel) -> str:
    """`time/rollout_s` among its like is `rollout`."""
    prefix = next((metric for metric in panel.metrics if metric.endswith("/")), None)
    return name.removeprefix(prefix).removesuffix("_s") if prefix else name


def _range(panel: Panel, rows: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The panel's own limits where it has any; a floor of -1 only counts when values reach below 0."""
    values = [value for row in rows for value in row if math.isfinite(value)]
    if panel.low is None or not values:
        return None
    low = max(panel.low, min(0.0, math.floor(min(values) * 5) / 5)) if panel.low < 0 else panel.low
    high = panel.high if panel.high is not None else max(values) * 1.05
    return (low, high) if high > low else None


def _last(row: Sequence[float]) -> str:
    tail = [value for value in row[-max(1, len(row) // 10) :] if math.isfinite(value)]
    if not tail:
        return "not a number"
    mean = sum(tail) / len(tail)
    return f"{mean:,.0f}" if abs(mean) >= 1000 else f"{mean:.3g}"
