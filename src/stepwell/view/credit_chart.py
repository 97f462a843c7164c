"""The credit of a trajectory as SVG, as in figure 8 of StepPO: values as a line, advantages as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.monitors.axes import choose_ticks, find_extent, format_ticks, round_range
from stepwell.monitors.svg import (
    GRID,
    escape_text,
    format_points,
    get_color,
    make_element,
    make_svg,
    make_text,
)
from stepwell.pool.credit_reading import StepCredit

_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 26, 24
_WIDTH, _HEIGHT = 860, 210
_VALUE, _BETTER, _WORSE = 0, 2, 4  # colours


def draw_credit_chart(rows: Sequence[StepCredit]) -> str:
    """The chart; empty with fewer than two steps, or without a single figure."""
    values = [(i, row.value) for i, row in enumerate(rows) if row.value is not None]
    advantages = [(i, row.advantage) for i, row in enumerate(rows) if row.advantage is not None]
    extent = find_extent([0.0, *(height for _, height in values + advantages)])
    if len(rows) < 2 or extent is None or not values + advantages:
        return ""
    low, high = round_range(*extent, count=4)
    bottom, column = _HEIGHT - _BOTTOM, (_WIDTH - _LEFT - _RIGHT) / len(rows)

    def find_x(index: int) -> float:
        return _LEFT + (index + 0.5) * column

    def find_y(height: float) -> float:
        return bottom - (height - low) / (high - low) * (bottom - _TOP)

    parts = _draw_grid(low, high, find_y)
    bar = min(36.0, 0.6 * column)
    for index, height in advantages:
        top, base = sorted((find_y(height), find_y(0.0)))
        words = make_element("title", escape_text(f"step {rows[index].step}: advantage {height:+.3g}"))
        fill = get_color(_BETTER if height >= 0 else _WORSE)
        place = {"x": find_x(index) - bar / 2, "y": top, "width": bar, "height": max(base - top, 0.8)}
        parts.append(make_element("rect", words, **place, style=f"fill:{fill};opacity:.55"))
    if values:
        points = [(find_x(index), find_y(height)) for index, height in values]
        stroke = f"stroke:{get_color(_VALUE)};stroke-width:2"
        parts.append(make_element("polyline", points=format_points(points), fill="none", style=stroke))
    for index, height in values:
        words = make_element("title", escape_text(f"step {rows[index].step}: value {height:.3g}"))
        dot = {"cx": find_x(index), "cy": find_y(height), "r": 3.4}
        parts.append(make_element("circle", words, **dot, style=f"fill:{get_color(_VALUE)}"))
    every = max(1, round(28 / column))
    parts += [
        make_text(find_x(index), bottom + 16, str(row.step), anchor="middle")
        for index, row in enumerate(rows)
        if index % every == 0
    ]
    return make_svg(_WIDTH, _HEIGHT, "values and advantages by step", [*parts, *_draw_legend(bool(values))])


def _draw_grid(low: float, high: float, find_y: Callable[[float], float]) -> list[str]:
    ticks = choose_ticks(low, high, 4)
    parts = []
    for tick, label in zip(ticks, format_ticks(ticks), strict=True):
        y = find_y(tick)
        strength = 1.6 if tick == 0 else 0.8
        line = {"x1": _LEFT, "x2": _WIDTH - _RIGHT, "y1": y, "y2": y}
        parts.append(make_element("line", **line, style=f"stroke:{GRID};stroke-width:{strength}"))
        parts.append(make_text(_LEFT - 6, y + 4, label, anchor="end"))
    return parts


def _draw_legend(has_values: bool) -> list[str]:
    names = [("advantage above 0", _BETTER), ("below 0", _WORSE)] + [("value", _VALUE)] * has_values
    parts, x = [], float(_LEFT)
    for name, color in names:
        parts.append(make_element("rect", x=x, y=6, width=10, height=10, style=f"fill:{get_color(color)}"))
        parts.append(make_text(x + 15, 15, name))
        x += 30 + 6.2 * len(name)
    return parts
