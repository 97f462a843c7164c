"""The calibration of a judge: how often episodes succeed to which it gives a probability.

A judge on the diagonal is right about its own doubt. The band around the points are 95 % intervals of the
observed share (Wilson's), so that a bin of few episodes does not look like a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepwell.core.statistics import compute_wilson_interval
from stepwell.monitors.charts import Series, draw_line_chart


def draw_calibration(name: str, bins: Sequence[Mapping[str, float]]) -> str:
    """Draw the bins of a judge (`predicted`, `observed`, `count`) as SVG; empty bins are left out."""
    filled = sorted((one for one in bins if one["count"]), key=lambda one: one["predicted"])
    bands = [
        compute_wilson_interval(round(one["observed"] * one["count"]), int(one["count"])) for one in filled
    ]
    series = [
        Series("right about its doubt", (0.0, 1.0), (0.0, 1.0), color=5, dashed=True),
        Series(
            name,
            [one["predicted"] for one in filled],
            [one["observed"] for one in filled],
            [low for low, _ in bands],
            [high for _, high in bands],
            marks=True,
        ),
    ]
    return draw_line_chart(
        series,
        title=f"Calibration of {name}",
        x_label="predicted probability of success",
        y_label="observed share",
        width=420,
        height=380,
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
    )
