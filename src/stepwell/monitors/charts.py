"""Charts as SVG text, drawn in Python: line charts with bands, and bars with intervals.

No library, no script, no font: a chart is a string for a page or a file.

Invariants
* Nothing is hidden. NaN leaves a gap in its line; a point between gaps is a dot; a chart without
  data says so. Long lines are thinned to at most two values per pixel column, the lowest and the
  highest, so that no spike is lost.
* All text is escaped here. Callers pass plain text.
* A line has its name and the scales of its axes as attributes, from which a page's script can
  read values (`data-name`, `data-x`, `data-y`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.core.errors import InputError
from stepwell.monitors.axes import (
    CHAR_WIDTH,
    Scale,
    choose_ticks,
    find_extent,
    format_ticks,
    round_range,
    widen_range,
)
from stepwell.monitors.svg import (
    GRID,
    INK,
    MUTED,
    PAPER,
    escape_text,
    format_points,
    get_color,
    make_element,
    make_svg,
    make_text,
)


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `low` and `high`, if given, are a band around it; `color` counts from 0.

    `marks` shows every point; `smooth` (points on either side) draws the running mean over the
    faint raw line; `dashed` is for baselines.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    color: int = 0
    marks: bool = False
    smooth: int = 0
    dashed: bool = False

    def __post_init__(self) -> None:
        for other in (self.y, self.low, self.high):
            if other is not None and len(other) != len(self.x):
                raise InputError(f"series {self.name!r} has {len(self.x)} x but {len(other)} other values")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, with its interval if known. `strong` bars stand out."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    color: int = 5
    strong: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """A dashed horizontal line to compare with."""

    name: str
    y: float


def draw_line_chart(
    series: Sequence[Series],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    width: int = 720,
    height: int = 320,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    levels: Sequence[ReferenceLine] = (),
    legend: bool | None = None,
) -> str:
    """Draw lines over a common axis. Without ranges, the axes are chosen so that everything fits.

    With `legend=None` there is a legend if there is more than one series.
    """
    x_extent = x_range or find_extent(value for item in series for value in item.x)
    y_extent = y_range or find_extent(_collect_y(series, levels))
    if x_extent is None or y_extent is None:
        return make_svg(
            width, height, title, [make_text(width / 2, height / 2, "no data yet", anchor="middle")]
        )
    has_legend = len(series) > 1 if legend is None else legend
    top, head = (
        _draw_legend(series, width)
        if has_legend
        else (10.0 + 14 * bool(y_label), [make_text(2, 12, y_label)])
    )
    height += max(
        0, round(top - 42)
    )  # a legend of many rows adds to the height, so that the plot keeps its own
    bottom = height - (42 if x_label else 26)
    count = _count_ticks(bottom - top, 36)
    low, high = y_extent if y_range else round_range(*y_extent, count=count)
    ticks = choose_ticks(low, high, count)
    left = 12 + CHAR_WIDTH * max(map(len, format_ticks(ticks)), default=1)
    x = Scale(*widen_range(*x_extent, is_start=True), left, width - 12)
    y = Scale(*widen_range(low, high), bottom, top)
    head.append(make_text((x.start + x.stop) / 2, height - 6, x_label, anchor="middle"))
    plot = [_draw_band(item, x, y) for item in series] + [_draw_line(item, x, y) for item in series]
    plot += [_draw_lone_dots(item, x, y) for item in series if not item.marks]
    marks = [_draw_marks(item, x, y) for item in series if item.marks]
    is_whole = all(value.is_integer() for item in series for value in map(float, item.x))
    behind = [
        *_draw_y_axis(y, ticks, x),
        *_draw_x_axis(x, y, whole=is_whole),
        *_draw_reference_lines(levels, x, y),
    ]
    parts = [*head, *behind, _clip_parts(plot, x, y), *marks, *_draw_reference_names(levels, x, y)]
    return make_svg(width, height, title, parts, data_x=x.attribute, data_y=y.attribute)


def draw_bar_chart(
    bars: Sequence[Bar], *, title: str = "", width: int = 720, high: float | None = None
) -> str:
    """Draw horizontal bars from 0 (to at least `high`), with intervals as whiskers, and their values.

    Names are above their bars if the chart is narrower than 500 px, or if they would take half of it.
    """
    shown = [bar for bar in bars if math.isfinite(bar.value)]
    if not shown:
        return make_svg(width, 60, title, [make_text(width / 2, 34, "no data yet", anchor="middle")])
    names = 14 + 7.0 * max(len(bar.name) for bar in shown)
    is_narrow = width < 500 or names > width / 2
    row, thickness = (46, 14) if is_narrow else (34, 18)
    left = 4.0 if is_narrow else names
    most = max(max(bar.value, bar.high or 0.0) for bar in shown)
    room = 118 if any(bar.high is not None for bar in shown) else 48
    scale = Scale(0.0, max(high or 0.0, most) or 1.0, left, width - room)
    parts = []
    for index, bar in enumerate(shown):
        middle = 6 + row * index + (row - thickness / 2 - 4 if is_narrow else row / 2)
        parts.append(_draw_bar(bar, scale, middle, thickness))
        above = (left, middle - thickness / 2 - 5, "start")
        x, y, anchor = above if is_narrow else (left - 10, middle + 4, "end")
        parts.append(
            make_text(x, y, bar.name, anchor=anchor, fill=INK, more=f"font-size:12.5px;{_choose_weight(bar)}")
        )
    bottom = 8 + row * len(shown)
    if not is_narrow:
        parts.append(make_element("line", x1=left, x2=left, y1=4, y2=bottom, style=f"stroke:{MUTED}"))
    return make_svg(width, bottom + 4, title, parts)


def smooth_values(values: Sequence[float], reach: int) -> list[float]:
    """The running mean over up to `reach` values on either side; gaps stay gaps."""
    row = np.asarray(values, dtype=np.float64)
    is_finite, window = np.isfinite(row), np.ones(2 * reach + 1)
    if not is_finite.any():
        return [math.nan] * len(row)
    middle = slice(reach, reach + len(row))
    sums = np.convolve(np.where(is_finite, row, 0.0), window)[middle]
    counts = np.convolve(is_finite.astype(np.float64), window)[middle]
    means: list[float] = np.where(is_finite, sums / np.maximum(counts, 1.0), math.nan).tolist()
    return means


def _collect_y(series: Sequence[Series], levels: Sequence[ReferenceLine]) -> list[float]:
    rows = [row for item in series for row in (item.y, item.low, item.high) if row is not None]
    return [value for row in rows for value in row] + [level.y for level in levels]


def _count_ticks(size: float, apart: float) -> int:
    return max(2, min(6, int(size / apart)))


def _draw_legend(series: Sequence[Series], width: int) -> tuple[float, list[str]]:
    """The top of the plot, and the names in rows above it."""
    parts, x, y = [], 4.0, 14.0
    for item in series:
        needed = 24 + 6.2 * len(item.name)
        if x > 4 and x + needed > width:
            x, y = 4.0, y + 16
        style = f"stroke:{get_color(item.color)};stroke-width:2.5"
        dash = "4 3" if item.dashed else None
        parts.append(
            make_element("line", x1=x, x2=x + 14, y1=y - 4, y2=y - 4, stroke_dasharray=dash, style=style)
        )
        parts.append(make_text(x + 19, y, item.name, fill=INK))
        x += needed + 8
    return y + 12, parts


def _draw_y_axis(y: Scale, ticks: Sequence[float], x: Scale) -> list[str]:
    parts = []
    for tick, label in zip(ticks, format_ticks(ticks), strict=True):
        style = f"stroke:{MUTED};stroke-width:.8" if tick == 0 else f"stroke:{GRID}"
        parts.append(make_element("line", x1=x.start, x2=x.stop, y1=y(tick), y2=y(tick), style=style))
        parts.append(make_text(x.start - 6, y(tick) + 3.8, label, anchor="end"))
    return parts


def _draw_x_axis(x: Scale, y: Scale, *, whole: bool) -> list[str]:
    """Labels from right to left; a label that would touch the previous one is left out."""
    ticks = choose_ticks(x.low, x.high, _count_ticks(x.stop - x.start, 72), whole=whole)
    parts, free = [], math.inf
    for tick, label in reversed(list(zip(ticks, format_ticks(ticks), strict=True))):
        width = CHAR_WIDTH * len(label)
        is_last = x(tick) + width / 2 > x.stop + 10
        right = x(tick) + (0 if is_last else width / 2)
        if right <= free:
            parts.append(make_text(x(tick), y.start + 16, label, anchor="end" if is_last else "middle"))
            free = right - width - 6
    return parts


def _draw_reference_lines(levels: Sequence[ReferenceLine], x: Scale, y: Scale) -> list[str]:
    style = f"stroke:{MUTED};stroke-width:1.2"
    return [
        make_element(
            "line", x1=x.start, x2=x.stop, y1=y(level.y), y2=y(level.y), stroke_dasharray="2 4", style=style
        )
        for level in levels
    ]


def _draw_reference_names(levels: Sequence[ReferenceLine], x: Scale, y: Scale) -> list[str]:
    """Names above their lines, at least 12 px apart and inside the chart, with a rim for contrast."""
    ordered = sorted(levels, key=lambda level: level.y)
    heights: list[float] = []
    for level in ordered:
        heights.append(min(y(level.y) - 4, heights[-1] - 12 if heights else math.inf))
    lowest_allowed = y.stop + 8.0
    for index in reversed(range(len(heights))):  # names beyond the top push the others down
        heights[index] = max(heights[index], lowest_allowed)
        lowest_allowed = heights[index] + 12
    rim = f"stroke:{PAPER};stroke-width:3;paint-order:stroke;stroke-linejoin:round"
    return [
        make_text(x.stop, height, level.name, anchor="end", more=rim)
        for level, height in zip(ordered, heights, strict=True)
    ]


def _clip_parts(parts: Sequence[str], x: Scale, y: Scale) -> str:
    """Clip at the axes. A nested SVG needs no id, unlike a clip path."""
    left, top, width, height = x.start, y.stop - 3, x.stop - x.start + 3, y.start - y.stop + 6
    box = f"{left:.1f} {top:.1f} {width:.1f} {height:.1f}"
    return make_element(
        "svg", *parts, x=left, y=top, width=width, height=height, viewBox=box, overflow="hidden"
    )


def _draw_line(item: Series, x: Scale, y: Scale) -> str:
    """The line with its name, and the running mean over it."""
    rows = [(item.y, f"stroke-width:{1 if item.smooth else 2};opacity:{0.35 if item.smooth else 1}", True)]
    if item.smooth:
        rows.append((smooth_values(item.y, item.smooth), "stroke-width:2", False))
    return "".join(
        make_element(
            "polyline",
            points=format_points(piece),
            fill="none",
            stroke_dasharray="5 4" if item.dashed else None,
            data_name=item.name if is_read else None,
            style=f"stroke:{get_color(item.color)};stroke-linejoin:round;stroke-linecap:round;{style}",
        )
        for values, style, is_read in rows
        for piece in _split_pieces(item.x, values, x, y)
    )


def _draw_lone_dots(item: Series, x: Scale, y: Scale) -> str:
    """A dot for each point with gaps on both sides: a line of one point is invisible."""
    finite = [math.isfinite(at) and math.isfinite(value) for at, value in zip(item.x, item.y, strict=True)]
    if all(finite) and len(finite) > 1:
        return ""
    framed = [False, *finite, False]
    lone = [i for i in range(len(finite)) if framed[i : i + 3] == [False, True, False]]
    style = f"fill:{get_color(item.color)}"
    return "".join(make_element("circle", cx=x(item.x[i]), cy=y(item.y[i]), r=2.5, style=style) for i in lone)


def _split_pieces(
    xs: Sequence[float], ys: Sequence[float], x: Scale, y: Scale
) -> list[list[tuple[float, float]]]:
    """Thinned runs of finite points, in pixels."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at, value in zip(xs, ys, strict=True):
        if math.isfinite(at) and math.isfinite(value):
            pieces[-1].append((x(at), y(value)))
        elif pieces[-1]:
            pieces.append([])
    return [thin_points(piece) for piece in pieces if piece]


def thin_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """First, lowest, highest and last point of every pixel column, in order."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        columns.setdefault(int(point[0]), []).append(point)
    kept: list[tuple[float, float]] = []
    for column in columns.values():
        if len(column) <= 2:
            kept += column
            continue
        heights = [point[1] for point in column]
        ends = {0, len(column) - 1, heights.index(min(heights)), heights.index(max(heights))}
        kept += [column[index] for index in sorted(ends)]
    return kept


def _draw_band(item: Series, x: Scale, y: Scale) -> str:
    if item.low is None or item.high is None:
        return ""
    rows = [row for row in zip(item.x, item.low, item.high, strict=True) if all(map(math.isfinite, row))]
    edge = [(x(at), y(high)) for at, _, high in rows] + [(x(at), y(low)) for at, low, _ in reversed(rows)]
    return make_element(
        "polygon", points=format_points(edge), style=f"fill:{get_color(item.color)};opacity:.16"
    )


def _draw_marks(item: Series, x: Scale, y: Scale) -> str:
    parts = []
    style = f"fill:{get_color(item.color)};stroke:{PAPER};stroke-width:1.5"
    for index, (at, value) in enumerate(zip(item.x, item.y, strict=True)):
        if math.isfinite(at) and math.isfinite(value):
            words = f"{item.name}: {value:.4g} at {at:,.6g}"
            if (
                item.low is not None
                and item.high is not None
                and math.isfinite(item.low[index] + item.high[index])
            ):
                words += f" [{item.low[index]:.3g}, {item.high[index]:.3g}]"
            title = make_element("title", escape_text(words))
            parts.append(make_element("circle", title, cx=x(at), cy=y(value), r=3.2, style=style))
    return "".join(parts)


def _choose_weight(bar: Bar) -> str:
    return "font-weight:600;" if bar.strong else ""


def _draw_bar(bar: Bar, scale: Scale, middle: float, thickness: float) -> str:
    end = reach = max(scale(bar.value), scale.start + 1)
    title = [make_element("title", escape_text(bar.note))] if bar.note else []
    style = f"fill:{get_color(bar.color)};opacity:{1 if bar.strong else 0.55}"
    top, width = middle - thickness / 2, end - scale.start
    parts = [
        make_element("rect", *title, x=scale.start, y=top, width=width, height=thickness, rx=2, style=style)
    ]
    interval = ""
    if bar.low is not None and bar.high is not None:
        low, reach = scale(bar.low), max(scale(bar.high), end)
        path = f"M{low:.1f},{middle}H{reach:.1f}M{low:.1f},{middle - 4}v8M{reach:.1f},{middle - 4}v8"
        parts.append(make_element("path", d=path, fill="none", style=f"stroke:{INK};stroke-width:1.3"))
        interval = f"[{bar.low:.2f}, {bar.high:.2f}]"
    figures = f"font-size:13px;{_choose_weight(bar)}font-variant-numeric:tabular-nums"
    parts.append(make_text(reach + 8, middle + 4, f"{bar.value:.2f}", fill=INK, more=figures))
    parts.append(make_text(reach + 44, middle + 4, interval))
    return "".join(parts)
