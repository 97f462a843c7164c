"""The timeline of workers as a chart: one row per worker, a block while it is busy, gaps while it waits.

`timeline.json` of a run folder holds the rows: the last part of the run, in seconds from its start.
Rows are ordered by kind of worker, with the worker's busy share at the end.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell.core.disk import atomic_write
from stepwell.core.errors import EncodingError
from stepwell.monitors.axes import choose_ticks, format_ticks
from stepwell.monitors.svg import GRID, INK, get_color, make_element, make_svg, make_text

FILE_NAME = "timeline.json"
MAX_ROWS = 40
_ROW, _LABEL, _SHARE, _TOP = 18, 104, 44, 8
_GROUPS = {"simulators": 0, "generators": 1, "trainers": 2}


def write_timeline(folder: Path, timeline: dict[str, Any]) -> None:
    """Write `timeline.json` into a run folder."""
    atomic_write(folder / FILE_NAME, json.dumps(timeline).encode())


def read_timeline(folder: Path) -> dict[str, Any] | None:
    """The timeline of a run folder; None for a run without workers."""
    path = folder / FILE_NAME
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        rows = [
            {
                "group": str(row["group"]),
                "worker": str(row["worker"]),
                "spans": [(float(a), float(b)) for a, b in row["spans"]],
            }
            for row in content["rows"]
        ]
        return {"seconds": float(content["seconds"]), "rows": rows}
    except (ValueError, KeyError, TypeError) as error:
        raise EncodingError(
            f"{path} is damaged ({error}); delete it to write the report without it"
        ) from error


def draw_timeline(timeline: dict[str, Any], width: float) -> str:
    """Draw the chart. With more than `MAX_ROWS` workers, some of the largest kind are only counted."""
    rows, num_hidden = _select_rows(timeline["rows"])
    seconds = max(float(timeline["seconds"]), 1e-9)
    scale = (width - _LABEL - _SHARE) / seconds
    parts, y = [], float(_TOP)
    for row in rows:
        parts.append(make_text(_LABEL - 8, y + 12, row["worker"], anchor="end", fill=INK))
        parts.append(
            make_element("rect", x=_LABEL, y=y + 2, width=seconds * scale, height=_ROW - 4, fill=GRID)
        )
        fill = get_color(_GROUPS.get(row["group"], 3))
        parts += [
            make_element(
                "rect",
                x=_LABEL + a * scale,
                y=y + 2,
                width=max((b - a) * scale, 0.2),
                height=_ROW - 4,
                fill=fill,
            )
            for a, b in merge_spans(row["spans"], gap=0.15 / scale)
        ]
        share = sum(b - a for a, b in row["spans"]) / seconds
        parts.append(make_text(width - _SHARE + 6, y + 12, f"{100 * share:.0f} %"))
        y += _ROW
    ticks = choose_ticks(0.0, seconds, max(1, min(5, int(seconds * scale / 70))))
    labels = [f"{tick:,.0f}" for tick in ticks] if seconds >= 100 else format_ticks(ticks)
    for moment, words in zip(ticks, labels, strict=True):
        place = _LABEL + moment * scale
        anchor = "start" if moment == 0 else "end" if place > width - _SHARE - 30 else "middle"
        parts.append(make_text(place, y + 14, f"{words} s", anchor=anchor))
    if num_hidden:
        parts.append(make_text(_LABEL, y + 30, f"and {num_hidden} more workers"))
    return make_svg(width, y + (38 if num_hidden else 22), "who worked when", parts)


def merge_spans(spans: list[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Join spans that are closer than `gap`: a gap too small to see is not drawn."""
    result: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if result and start - result[-1][1] < gap:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def _select_rows(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    if len(rows) <= MAX_ROWS:
        return rows, 0
    sizes = {row["group"]: 0 for row in rows}
    for row in rows:
        sizes[row["group"]] += 1
    largest = max(sizes, key=lambda group: sizes[group])
    num_hidden = len(rows) - MAX_ROWS
    kept, num_left = [], sizes[largest] - num_hidden
    for row in rows:
        if row["group"] != largest or num_left > 0:
            kept.append(row)
            num_left -= row["group"] == largest
    return kept, len(rows) - len(kept)
